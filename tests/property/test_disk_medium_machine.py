"""Any order of writes, reads, evictions, erasures, secrets, damage and restarts, against a model that is a dict."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from disk_rig import BLOCK_BYTES, NEXT_SECRET, OTHER_UID, SECRET, UID, body_of, chain, extents_in, open_disk
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvgrove_daemon.cache.tiers.disk import SecretUnknown
from kvgrove_daemon.cache.tiers.medium import Facts, MediumCorrupt, MediumFailed

SLOTS = 6
FACTS = [*chain(4), *chain(2, seed=1), *chain(3, seed=2, namespace=OTHER_UID)]


class DiskMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.directory = Path(self.folder.name)
        self.disk = open_disk(self.directory, slots=SLOTS)
        self.secrets = {UID: SECRET, OTHER_UID: SECRET}
        self.known = {UID, OTHER_UID}
        for namespace, secret in self.secrets.items():
            self.disk.set_secret(namespace, secret)
        self.held: dict[int, Facts] = {}
        self.broken: set[int] = set()
        """Slots whose file was damaged."""

    @rule(slots=st.sets(st.integers(0, SLOTS - 1), min_size=1, max_size=3), which=st.permutations(FACTS))
    def write(self, slots: set[int], which: list[Facts]) -> None:
        free = [slot for slot in slots if slot not in self.held]
        there = {facts.key for facts in self.held.values()}
        new = [facts for facts in which if facts.key not in there]
        blocks = [(slot, facts, body_of(facts)) for slot, facts in zip(free, new, strict=False)]
        if all(facts.namespace in self.known for _, facts, _ in blocks):
            self.disk.write_many(blocks)
            self.held.update((slot, facts) for slot, facts, _ in blocks)
        else:
            with pytest.raises(SecretUnknown):
                self.disk.write_many(blocks)

    @rule(slot=st.integers(0, SLOTS - 1))
    def read(self, slot: int) -> None:
        facts = self.held.get(slot)
        if facts is None:
            with pytest.raises(MediumFailed):
                self.disk.read(slot, FACTS[0])
        elif facts.namespace not in self.known:
            with pytest.raises(SecretUnknown):
                self.disk.read(slot, facts)
        elif slot in self.broken:
            with pytest.raises(MediumCorrupt):
                self.disk.read(slot, facts)
            del self.held[slot]
            self.broken.discard(slot)
        else:
            assert self.disk.read(slot, facts) == body_of(facts)

    @rule(slots=st.lists(st.integers(0, SLOTS - 1), max_size=3, unique=True), erase=st.booleans())
    def let_go(self, slots: list[int], erase: bool) -> None:
        if erase:
            assert self.disk.erase(slots) == len(slots)
        else:
            self.disk.release(slots)
        self._gone(slots)

    @rule(namespace=st.sampled_from([UID, OTHER_UID]))
    def erase_namespace(self, namespace: str) -> None:
        slots = [slot for slot, facts in self.held.items() if facts.namespace == namespace]
        assert self.disk.erase_namespace(namespace) >= len(slots)
        assert namespace not in self.disk.namespaces()
        self._gone(slots)
        self.known.discard(namespace)

    def _gone(self, slots: list[int]) -> None:
        for slot in slots:
            self.held.pop(slot, None)
            self.broken.discard(slot)

    @rule(namespace=st.sampled_from([UID, OTHER_UID]), known=st.booleans())
    def lease(self, namespace: str, known: bool) -> None:
        if known:
            self.disk.set_secret(namespace, self.secrets[namespace])
            self.known.add(namespace)
        else:
            self.disk.forget_secret(namespace)
            self.known.discard(namespace)

    @rule(namespace=st.sampled_from([UID, OTHER_UID]))
    def rewrap(self, namespace: str) -> None:
        old = self.secrets[namespace]
        new = NEXT_SECRET if old == SECRET else SECRET
        counts = self.disk.rewrap(namespace, old, new)
        assert counts.done == sum(facts.namespace == namespace for facts in self.held.values())
        assert (counts.already, counts.lost, counts.discarded) == (0, 0, 0)
        self.secrets[namespace] = new
        self.known.add(namespace)

    @precondition(lambda self: self.held.keys() - self.broken)
    @rule(data=st.data())
    def damage(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(sorted(self.held.keys() - self.broken)))
        path = self.directory / f"{self.disk._shelf.table.held[slot].header.extent.hex()}.extent"
        whole = bytearray(path.read_bytes())
        whole[-1 - data.draw(st.integers(0, BLOCK_BYTES))] ^= 0xFF
        path.write_bytes(whole)
        self.broken.add(slot)

    @rule()
    def restart(self) -> None:
        self.disk.close()
        self.disk = open_disk(self.directory, slots=SLOTS)
        broken = {self.held[slot].key for slot in self.broken}
        there = {facts.key for facts in self.held.values()}
        rooted: set[bytes] = set()
        for facts in sorted(self.held.values(), key=lambda facts: facts.depth):
            if facts.depth == 0 or facts.parent in rooted:
                rooted.add(facts.key)
        self.held = {}
        for namespace in (UID, OTHER_UID):
            self.disk.set_secret(namespace, self.secrets[namespace])
            for survivor in self.disk.survey(namespace, {FACTS[0].root}):
                slot = len(self.held)
                assert self.disk.adopt(slot, survivor)
                self.held[slot] = survivor.facts
            self.disk.discard(namespace)
        self.known = {UID, OTHER_UID}
        self.broken = {slot for slot, facts in self.held.items() if facts.key in broken}
        assert {facts.key for facts in self.held.values()} == rooted <= there

    @invariant()
    def every_file_is_a_slots(self) -> None:
        state = self.disk.state()
        assert (state.held, state.waiting, state.to_erase) == (len(self.held), 0, 0)
        assert len(extents_in(self.directory)) == len(self.held)
        assert not list(self.directory.glob("*.draft"))

    def teardown(self) -> None:
        self.disk.close()
        self.folder.cleanup()


DiskMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
TestDiskMachine = DiskMachine.TestCase
