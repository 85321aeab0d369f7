"""What an earlier boot left on a real disk, taken over: only under plan and lease, only what may be read now."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from disk_rig import (
    BLOCK_BYTES,
    BLOCK_SIZE,
    FILE_BYTES,
    OTHER_ROOT,
    OTHER_UID,
    ROOT,
    SECRET,
    UID,
    body_of,
    chain,
    open_disk,
)
from tier_rig import ManualWorkers

from kvgrove_daemon.cache.contributors import ANYBODY
from kvgrove_daemon.cache.eviction import LeafLRU
from kvgrove_daemon.cache.history import RemovalCause
from kvgrove_daemon.cache.resident import SilentSink
from kvgrove_daemon.cache.subjects import Subject
from kvgrove_daemon.cache.tiers.adopting import Adoption, Terms
from kvgrove_daemon.cache.tiers.debug import check_tier
from kvgrove_daemon.cache.tiers.lower import LowerTier
from kvgrove_daemon.cache.tiers.medium import Facts
from kvgrove_protocol.chain import block_keys
from kvgrove_protocol.identity import Contributor

WRITTEN_AT = 1_000_000.0
TERMS = Terms(secret=SECRET, former=b"", roots=frozenset({ROOT}), documents=frozenset({"handbook"}), ttl_s=3600.0)


class Restarted:
    """A boot over what an earlier one left: two chains that share their first three blocks."""

    def __init__(self, directory: Path) -> None:
        self.trunk = chain(6, seed=1)
        other = chain(6, seed=2)
        self.branch = [*self.trunk[:3], *self._under(self.trunk[2], other[:2])]
        before = open_disk(directory, wall_clock=lambda: WRITTEN_AT)
        before.set_secret(UID, SECRET)
        blocks = [*self.trunk, *self.branch[3:]]
        before.write_many([(slot, facts, body_of(facts)) for slot, facts in enumerate(blocks)])
        before.close()
        self.disk = open_disk(directory)
        self.now, self.wall = 0.0, WRITTEN_AT + 60.0
        self.workers = ManualWorkers()
        self.tier = LowerTier(
            self.disk,
            block_size=BLOCK_SIZE,
            body_bytes=BLOCK_BYTES,
            block_bytes=FILE_BYTES,
            policy=LeafLRU(self.disk.num_slots),
            sink=SilentSink(),
            workers=self.workers,
            clock=lambda: self.now,
        )
        self.adoption = Adoption(
            self.tier, self.disk, self.workers, clock=lambda: self.now, wall_clock=lambda: self.wall
        )

    @staticmethod
    def _under(parent: Facts, blocks: list[Facts]) -> list[Facts]:
        moved: list[Facts] = []
        for facts in blocks:
            above = moved[-1] if moved else parent
            depth = above.depth + 1
            (key,) = block_keys(above.key, facts.tokens, {}, block_size=BLOCK_SIZE, first_block=depth)
            moved.append(replace(facts, key=key, parent=above.key, depth=depth, fold=b"", documents=()))
        return moved

    def settle(self, terms: Terms | None = TERMS) -> None:
        self.adoption.keep({UID: terms} if terms is not None else {})
        for _ in range(4):
            self.workers.settle()
            self.adoption.tend()
        check_tier(self.tier)


@contextmanager
def restarted(directory: Path) -> Iterator[Restarted]:
    boot = Restarted(directory)
    try:
        yield boot
    finally:
        boot.disk.close()


def test_chains_come_back_whole_and_readable(tmp_path: Path) -> None:
    with restarted(tmp_path) as boot:
        boot.settle()
        index = boot.tier.index
        assert boot.adoption.adopted == len(index) == 8
        assert boot.adoption.is_settled(UID)
        for facts in [*boot.trunk, *boot.branch]:
            block = index.find(facts.key)
            assert block is not None
            assert boot.disk.read(index.slot[block], facts) == body_of(facts)
        assert boot.tier.resident.ages.born(0) == -60.0  # as old as it is, not as young as this boot


def test_i3_fresh_nothing_is_adopted_before_a_lease(tmp_path: Path) -> None:
    with restarted(tmp_path) as boot:
        boot.settle(None)
        assert boot.adoption.adopted == 0
        boot.settle()
        assert boot.adoption.adopted == 8


@pytest.mark.parametrize(
    "terms",
    [
        replace(TERMS, roots=frozenset({OTHER_ROOT})),  # another generation, purge epoch or policy version
        replace(TERMS, secret=b"another secret of the namespace."),
        replace(TERMS, documents=frozenset()),
        replace(TERMS, ttl_s=59.0),
    ],
)
def test_i3_fresh_what_may_not_be_read_now_is_discarded(tmp_path: Path, terms: Terms) -> None:
    with restarted(tmp_path) as boot:
        boot.settle(terms)
        assert boot.adoption.adopted == 0
        assert boot.disk.state().waiting == 0
        boot.settle()
        assert boot.adoption.adopted == 0


def test_another_namespace_gets_nothing_of_it(tmp_path: Path) -> None:
    with restarted(tmp_path) as boot:
        boot.adoption.keep({OTHER_UID: TERMS})
        boot.workers.settle()
        boot.adoption.tend()
        assert boot.adoption.adopted == 0
        assert boot.disk.state().waiting == 8


def test_i8_what_was_dropped_while_it_was_surveyed_is_not_adopted(tmp_path: Path) -> None:
    with restarted(tmp_path) as boot:
        boot.adoption.keep({UID: TERMS})
        boot.workers.run_one()
        boot.adoption.dropped(UID)
        boot.settle()
        assert boot.adoption.adopted == 0
        assert boot.disk.state().waiting == 0


def test_i8_adopted_text_is_anybodys_so_that_no_erasure_misses_it(tmp_path: Path) -> None:
    with restarted(tmp_path) as boot:
        boot.settle()
        index = boot.tier.index
        assert {index.tag_of(block) for block in index.ready_ids().tolist()} == {ANYBODY}
        stranger = Contributor(b"z" * 16, b"y" * 16)
        assert boot.tier.drop(RemovalCause.ERASE, Subject(namespace=UID, contributor=stranger)).blocks == 8
        boot.tier.relieve()
        boot.settle()
        assert boot.disk.state().held == 0


def test_a_lease_that_ends_makes_the_disk_noise_until_it_comes_back(tmp_path: Path) -> None:
    with restarted(tmp_path) as boot:
        boot.settle()
        facts = boot.trunk[0]
        slot = boot.tier.index.slot[boot.tier.index.find(facts.key) or 0]
        boot.settle(None)
        with pytest.raises(Exception, match="no secret"):
            boot.disk.read(slot, facts)
        boot.settle()
        assert boot.disk.read(slot, facts) == body_of(facts)
        assert boot.adoption.adopted == 8
