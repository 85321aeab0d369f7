"""Random lives of a store: whatever happens in whatever order, it stays exact, rooted, whole and adds up.

The model beside the store knows which content each READY slot holds; memory is simulated, one value per slot.
"""

import itertools

import numpy as np
from block_store_rig import BLOCK, Events, chain_of, make_store, tokens
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from kvgrove_daemon.cache.debug import check
from kvgrove_daemon.cache.eviction import POLICIES
from kvgrove_daemon.cache.history import RemovalCause
from kvgrove_daemon.cache.store import Build, Chain, Match, NoRoom, StoreLimits

SLOTS = 24
NAMESPACES = ["a", "b"]


class StoreMachine(RuleBasedStateMachine):
    matches: Bundle[Match] = Bundle("matches")
    builds: Bundle[Build] = Bundle("builds")

    @initialize(policy=st.sampled_from(sorted(POLICIES)))
    def start(self, policy: str) -> None:
        self.events = Events()
        limits = StoreLimits(low_free=2, high_free=5, known_chain_bytes=4000, ghosts=16)
        self.store = make_store(SLOTS, sink=self.events, limits=limits, policy=policy)
        self.memory: dict[int, tuple[bytes, ...]] = {}
        self.fence = True
        self.drops = itertools.count()

    # -- requests: few distinct tokens, so that chains branch, extend and repeat

    @rule(
        target=matches,
        values=st.lists(st.integers(0, 1), min_size=1, max_size=8),
        tail=st.integers(0, BLOCK),
        namespace=st.sampled_from(NAMESPACES),
        document=st.sampled_from(["", "d1", "d2"]),
        private=st.sampled_from([b"", b"alice", b"bob"]),
    )
    def match(self, values: list[int], tail: int, namespace: str, document: str, private: bytes) -> Match:
        raw = tokens(value for value in values for _ in range(BLOCK)) + tokens([7] * tail)
        folds = {1: document.encode()} if document else {}
        if private:
            folds[3] = private
        documents = {1: (document,)} if document else {}
        chain = chain_of(
            self.store, raw, root=namespace.encode() * 32, folds=folds, namespace=namespace, documents=documents
        )
        match = self.store.match(chain)
        assert match.reused_tokens < chain.token_count
        # I1: each reused slot holds exactly the content that this chain has there.
        assert [self.memory[slot] for slot in match.slots] == [content(chain, at) for at in range(match.blocks)]
        return match

    @rule(match=consumes(matches))
    def release(self, match: Match) -> None:
        match.release()

    @rule(target=builds, match=consumes(matches), spare=st.integers(0, 9))
    def begin(self, match: Match, spare: int) -> Build | object:
        evictable, free = self.store._resident.evictable, self.store.stats().free
        build = self.store.begin(match, spare_tokens=spare)
        if isinstance(build, NoRoom):
            assert build.wanted > free + evictable
            match.release()
            return multiple()
        self.write(build, build.reused_blocks)
        return build

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
            stored = build.commit(min(upto, len(build.slots), len(build.chain.keys)), lambda: self.fence)
            assert self.fence or not stored

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
        build.commit(upto, lambda: self.fence)

    @rule(build=builds, how=st.sampled_from(["finish", "fail", "cancel"]))
    def end(self, build: Build, how: str) -> None:
        getattr(build, how)()

    # -- housekeeping

    @rule(count=st.integers(1, 6))
    def evict(self, count: int) -> None:
        self.store.evict_to(self.store.stats().free + count, limit=count)

    @rule()
    def relieve(self) -> None:
        self.store.relieve(limit=3)

    @rule(namespace=st.sampled_from(NAMESPACES), document=st.sampled_from([None, "d1", "d2"]))
    def drop(self, namespace: str, document: str | None) -> None:
        cause = RemovalCause.ERASE if document is None else RemovalCause.VERSION
        self.store.drop(cause=cause, namespace=namespace, document=document)
        if document is None:
            assert not any(key in self.events.ready for key in self.keys_of(namespace))

    def keys_of(self, namespace: str) -> list[bytes]:
        index = self.store._resident.index
        return [index.key(block) for block in index.ready_ids().tolist() if index.namespace(block) == namespace]

    @rule(namespace=st.sampled_from(NAMESPACES), blocks=st.sampled_from([None, 0, 3, 8]))
    def ceiling(self, namespace: str, blocks: int | None) -> None:
        self.store.set_ceiling(namespace, blocks)

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

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        for build in list(self.store._scope.live):
            build.finish()
        check(self.store)
        assert self.store.stats().private == 0


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


StoreMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
TestBlockStore = StoreMachine.TestCase
