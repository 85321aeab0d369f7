"""Random lives of a store: whatever happens in whatever order, it stays exact, rooted, whole and adds up.

The model beside the store knows which content each READY slot holds, who contributed to it, and what waits for its
wiping; memory is simulated, one value per slot.
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from block_store_rig import BLOCK, Clock, Events, caller, chain_of, make_store, tokens
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from kvgrove_daemon.cache.blocks import BlockState
from kvgrove_daemon.cache.contributors import Writer, means, tag_of
from kvgrove_daemon.cache.debug import check
from kvgrove_daemon.cache.eviction import POLICIES
from kvgrove_daemon.cache.history import RemovalCause
from kvgrove_daemon.cache.rooms import NamespaceRoom
from kvgrove_daemon.cache.store import Build, Chain, Match, NoRoom, StoreLimits
from kvgrove_protocol.identity import NOBODY, Contributor

SLOTS = 24
NAMESPACES = ["a", "b"]
PRIVATE_FROM = 1
WRITERS = [caller(1, 1), caller(1, 2), caller(2, 1), caller(2), NOBODY]

rooms = st.builds(
    NamespaceRoom,
    floor=st.sampled_from([0, 4]),
    ceiling=st.sampled_from([None, None, 6, 12]),
    tenant_share=st.sampled_from([100, 50, 10]),
    ttl_s=st.sampled_from([None, 5.0]),
    sliding=st.booleans(),
    policy=st.sampled_from([None, *POLICIES]),
    high_watermark=st.sampled_from([100, 60]),
    low_watermark=st.sampled_from([60, 30]),
    max_branches=st.sampled_from([None, 1, 2]),
)

Wish = tuple[list[int], int, str, str, bytes, Contributor]
wishes: st.SearchStrategy[Wish] = st.tuples(
    st.lists(st.sampled_from([0, 0, 0, 1]), min_size=1, max_size=8),
    st.integers(0, BLOCK),
    st.sampled_from(NAMESPACES),
    st.sampled_from(["", "", "", "d1", "d2"]),
    st.sampled_from([b"", b"alice"]),
    st.sampled_from(WRITERS),
)
"""Tokens of whole blocks, further tokens, namespace, document, private realm, writer."""


class StoreMachine(RuleBasedStateMachine):
    matches: Bundle[Match] = Bundle("matches")
    builds: Bundle[Build] = Bundle("builds")

    @initialize(policy=st.sampled_from(sorted(POLICIES)), wiped=st.booleans())
    def start(self, policy: str, wiped: bool) -> None:
        self.clock = Clock()
        self.wiped = wiped
        self.quarantined: list[int] = []
        self.read_still: set[int] = set()
        self.open: list[Match] = []
        self.contributed: dict[bytes, set[Contributor]] = {}
        self.events = Events()
        limits = StoreLimits(low_free=2, high_free=5, known_chain_bytes=4000, ghosts=16)
        self.store = make_store(SLOTS, sink=self.events, limits=limits, policy=policy, clock=self.clock)
        if wiped:
            self.store.wipe_with(self.left_late)
        self.memory: dict[int, tuple[bytes, ...]] = {}
        self.fence = True
        self.drops = itertools.count()

    # -- requests: few distinct tokens, so that chains branch, extend and repeat

    @rule(target=matches, wish=wishes)
    def match(self, wish: Wish) -> Match:
        return self.matched(wish)

    @rule(wishes=st.lists(wishes, min_size=1, max_size=8))
    def requests(self, wishes: list[Wish]) -> None:
        """From match to end in one step, as most requests go: so that random lives get far."""
        self.requests_of(wishes)

    def requests_of(self, wishes: Sequence[Wish]) -> None:
        for wish in wishes:
            build = self.begun(self.matched(wish), 0)
            if build is not None:
                self.store_of(build, len(build.chain.keys))
                build.finish()

    def matched(self, wish: Wish) -> Match:
        values, tail, namespace, document, private, writer = wish
        raw = tokens(value for value in values for _ in range(BLOCK)) + tokens([7] * tail)
        folds = {0: document.encode()} if document else {}
        if private:
            folds[PRIVATE_FROM] = private
        documents = {0: (document,)} if document else {}
        chain = chain_of(
            self.store,
            raw,
            root=namespace.encode() * 32,
            folds=folds,
            namespace=namespace,
            documents=documents,
            writer=Writer(writer, PRIVATE_FROM),
        )
        expired = self.expired(chain)
        match = self.store.match(chain)
        self.open.append(match)
        assert not any(expired[: match.blocks])
        assert match.reused_tokens < chain.token_count
        # I1: each reused slot holds exactly the content that this chain has there.
        assert [self.memory[slot] for slot in match.slots] == [content(chain, at) for at in range(match.blocks)]
        return match

    def expired(self, chain: Chain) -> list[bool]:
        """By block of ``chain``: has it outlived its time, as far as it is there?"""
        index, ages, room = self.store._resident.index, self.store._resident.ages, self.store.room(chain.namespace)
        times = ages._used if room.sliding else ages._born
        limit = float("-inf") if room.ttl_s is None else self.clock.now - room.ttl_s
        blocks = [index.find(key) for key in chain.keys]
        return [block is not None and times[block] <= limit for block in blocks]

    @rule(match=consumes(matches))
    def release(self, match: Match) -> None:
        match.release()

    @rule(target=builds, match=consumes(matches), spare=st.integers(0, 9))
    def begin(self, match: Match, spare: int) -> Build | object:
        build = self.begun(match, spare)
        return multiple() if build is None else build

    def begun(self, match: Match, spare: int) -> Build | None:
        namespace, keys = match.chain.namespace, match.chain.keys[PRIVATE_FROM : match.blocks]
        evictable, free = self.store._resident.evictable_for(namespace), self.store.stats().free
        floors = self.floors(but=namespace)
        build = self.store.begin(match, spare_tokens=spare)
        if isinstance(build, NoRoom):
            assert build.wanted > free + evictable
            match.release()
            return None
        assert all(self.held(name) >= floor for name, floor in floors.items())  # ISO-16
        self.forget_gone()  # what gave way and is stored again within one step is the new writers' alone
        for key in keys:
            self.contributed.setdefault(key, set()).add(build.chain.writer.contributor)
        self.write(build, build.reused_blocks)
        return build

    def held(self, namespace: str) -> int:
        return self.store._resident.index.per_namespace.get(namespace, 0)

    def floors(self, *, but: str = "") -> dict[str, int]:
        """What others' pressure must leave to each namespace now."""
        return {name: min(self.held(name), self.store.room(name).floor) for name in NAMESPACES if name != but}

    def write(self, build: Build, first: int) -> None:
        """What an engine does: fill own slots from block ``first`` on."""
        private = set(build.private_slots())
        for at in range(first, len(build.slots)):
            assert build.slots[at] in private  # COR-13
            self.memory[build.slots[at]] = (*content(build.chain, min(at, len(build.chain.keys))), b"%d" % at)[:3]
            if at < len(build.chain.keys):
                self.memory[build.slots[at]] = content(build.chain, at)

    @rule(build=builds, upto=st.integers(0, 10))
    def commit(self, build: Build, upto: int) -> None:
        if build.state.name == "BUILDING":
            self.store_of(build, min(upto, len(build.slots), len(build.chain.keys)))

    def store_of(self, build: Build, upto: int) -> None:
        first, sealed, writer = build._considered, build.bypass is not None, build.chain.writer.contributor
        stored = build.commit(upto, lambda: self.fence)
        assert not stored or (self.fence and not sealed)
        if build.bypass is None or stored:
            for key in build.keys[max(first, PRIVATE_FROM) : build._considered]:
                if key in self.events.ready:
                    self.contributed.setdefault(key, set()).add(writer)
        index, most = self.store._resident.index, self.store.room(build.chain.namespace).max_branches
        head = index.find(stored[0]) if stored else None
        if head is not None and index.parent[head] >= 0 and index.owner[head] and most is not None:
            held = [block for block, _, _ in index.entries() if index.parent[block] == index.parent[head]]
            ready = [block for block in held if index.state[block] == index.state[head]]
            assert sum(index.owner[block] == index.owner[head] for block in ready) <= most

    @rule(build=builds, values=st.lists(st.integers(0, 1), max_size=12))
    def decode(self, build: Build, values: list[int]) -> None:
        if build.state.name == "BUILDING":
            build.add_tokens(values)
            build.extend(len(values) // BLOCK + 1)

    @rule(build=builds)
    def commit_generated(self, build: Build) -> None:
        """Generated blocks too; the model learns their content from the keys, which `check` recomputes."""
        if build.state.name != "BUILDING":
            return
        upto = min(len(build.slots), len(build.keys))
        for at in range(len(build.chain.keys), upto):
            if build.slots[at] in build.private_slots():
                self.memory[build.slots[at]] = generated(build, at)
        self.store_of(build, upto)

    @rule(build=builds, how=st.sampled_from(["finish", "fail", "cancel"]))
    def end(self, build: Build, how: str) -> None:
        getattr(build, how)()

    # -- housekeeping

    @rule(count=st.integers(1, 6))
    def evict(self, count: int) -> None:
        floors = self.floors()
        self.store.evict_to(self.store.stats().free + count, limit=count)
        assert all(self.held(name) >= floor for name, floor in floors.items())

    @rule(guarded=st.sampled_from(NAMESPACES), own=wishes, others=st.lists(wishes, min_size=1, max_size=3))
    def press_on_floor(self, guarded: str, own: Wish, others: list[Wish]) -> None:
        """One namespace has a floor and the other wants everything: what the floor promises stays."""
        (loud,) = (name for name in NAMESPACES if name != guarded)
        self.store.set_room(guarded, NamespaceRoom(floor=4))
        self.requests_of([in_namespace(own, guarded), *(in_namespace(wish, loud) for wish in others)])
        self.evict(SLOTS)

    @rule()
    def relieve(self) -> None:
        self.store.relieve(limit=3)

    @rule(namespace=st.sampled_from(NAMESPACES), document=st.sampled_from([None, "d1", "d2"]))
    def drop(self, namespace: str, document: str | None) -> None:
        cause = RemovalCause.ERASE if document is None else RemovalCause.VERSION
        dropped = self.store.drop(cause=cause, namespace=namespace, document=document)
        if cause is RemovalCause.ERASE:
            self.quarantined += dropped.slots
            self.read_still |= self.retiring(namespace)
        if document is None:
            assert not any(key in self.events.ready for key in self.keys_of(namespace))

    def retiring(self, namespace: str | None = None) -> set[int]:
        """Slots of blocks that are unreadable and only wait for their last reader."""
        index = self.store._resident.index
        waiting = [block for block, state, _ in index.entries() if state is BlockState.EVICTING]
        return {index.slot[block] for block in waiting if namespace in (None, index.namespace(block))}

    def keys_of(self, namespace: str) -> list[bytes]:
        index = self.store._resident.index
        return [index.key(block) for block in index.ready_ids().tolist() if index.namespace(block) == namespace]

    @rule(namespace=st.sampled_from(NAMESPACES), subject=st.sampled_from(WRITERS[:4]))
    def erase(self, namespace: str, subject: Contributor) -> None:
        index = self.store._resident.index
        declared = {index.key(block) for block in index.ready_ids().tolist() if index.depth[block] < PRIVATE_FROM}
        dropped = self.store.drop(cause=RemovalCause.ERASE, namespace=namespace, contributor=subject)
        self.quarantined += dropped.slots
        left = self.keys_of(namespace)
        assert declared <= self.events.ready
        tags = [tag_of(who) for key in left for who in self.contributed.get(key, ())]
        assert not any(means(subject, tag) for tag in tags)
        absent = [block for block in range(SLOTS) if not index.state[block]]
        assert not index._tokens[absent].any()

    @rule(wish=wishes, subject=st.sampled_from([None, *WRITERS[:4]]), computing=st.booleans())
    def erase_while_read(self, wish: Wish, subject: Contributor | None, computing: bool) -> None:
        """An erasure that meets a reader, or a request under way: what they keep is wiped when they have gone."""
        self.requests_of([wish])
        match = self.matched(wish)
        build = self.begun(match, 0) if computing else None
        namespace, drop = match.chain.namespace, self.store.drop
        self.quarantined += drop(cause=RemovalCause.ERASE, namespace=namespace, contributor=subject).slots
        if subject is None:
            self.read_still |= self.retiring(namespace)
        self.whole()
        match.release()
        if build is not None:
            build.finish()

    def left_late(self, erasures: frozenset[int], slots: Sequence[int]) -> None:
        assert erasures
        self.quarantined += slots

    @rule(count=st.integers(1, 8))
    def wipe(self, count: int) -> None:
        wiped, self.quarantined = self.quarantined[:count], self.quarantined[count:]
        for slot in wiped:
            self.memory.pop(slot, None)
        self.store.release(wiped)

    @rule(count=st.integers(1, 4))
    def take_dirty(self, count: int) -> None:
        if self.wiped:
            self.quarantined += self.store.take_dirty(count)

    @rule(seconds=st.sampled_from([1.0, 3.0, 6.0]))
    def tick(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule(namespace=st.sampled_from(NAMESPACES), room=rooms)
    def room(self, namespace: str, room: NamespaceRoom) -> None:
        self.store.set_room(namespace, room)

    @rule(namespace=st.sampled_from(NAMESPACES), blocks=st.sampled_from([None, 4, 8]))
    def ceiling(self, namespace: str, blocks: int | None) -> None:
        self.store.set_room(namespace, replace(self.store.room(namespace), ceiling=blocks))

    @rule(holds=st.booleans())
    def move_fence(self, holds: bool) -> None:
        self.fence = holds

    @rule()
    def clear(self) -> None:
        self.store.clear()
        assert self.store.stats().ready == 0

    # -- what always holds

    @invariant()
    def whole(self) -> None:
        check(self.store)
        assert self.events.ready == set(self.store.snapshot())
        assert self.store.stats().double_releases == 0
        quarantine = self.store._resident.quarantine
        assert len(quarantine) == len(self.quarantined) == len(set(self.quarantined))
        assert all(slot in quarantine for slot in self.quarantined)
        self.forget_gone()

    def forget_gone(self) -> None:
        left = self.read_still - self.retiring()  # their last reader has gone
        assert not self.wiped or left <= set(self.quarantined)
        self.read_still -= left
        for key in self.contributed.keys() - self.events.ready:
            del self.contributed[key]

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        for build in list(self.store._scope.live):
            build.finish()
        for match in self.open:
            match.release()
        assert not self.store._resident.quarantine._owing  # each late slot was named
        self.store.release(self.quarantined)
        check(self.store)
        assert self.store.stats().private == 0


def in_namespace(wish: Wish, namespace: str) -> Wish:
    values, tail, _, document, private, writer = wish
    return values, tail, namespace, document, private, writer


def content(chain: Chain, block: int) -> tuple[bytes, ...]:
    """All that makes the KV of a block: root, folds and tokens up to its end."""
    folds = b"|".join(b"%d:%s" % (at, chain.folds[at]) for at in sorted(chain.folds) if at <= block)
    return chain.root, folds, chain.tokens[: (block + 1) * BLOCK * 4]


def generated(build: Build, block: int) -> tuple[bytes, ...]:
    chain = build.chain
    folds = b"|".join(b"%d:%s" % (at, chain.folds[at]) for at in sorted(chain.folds) if at <= block)
    prompt = chain.tokens[: len(chain.keys) * BLOCK * 4]
    raw = np.concatenate([np.frombuffer(prompt, "<u4"), build._tokens(len(chain.keys), block + 1)])
    return chain.root, folds, raw.tobytes()


StoreMachine.TestCase.settings = settings(max_examples=120, stateful_step_count=50, deadline=None)
TestBlockStore = StoreMachine.TestCase
