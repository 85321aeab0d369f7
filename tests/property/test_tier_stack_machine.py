"""Random lives of a pool with two tiers below: whatever happens in whatever order, a request gets its own bytes.

Workers run when the machine says so, so stores, copies, failures, loads, drops and expiry interleave in any order.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tier_rig import TierRig, body_of

from kvgrove_daemon.cache.contributors import Writer
from kvgrove_daemon.cache.debug import check
from kvgrove_daemon.cache.history import RemovalCause
from kvgrove_daemon.cache.rooms import NamespaceRoom
from kvgrove_daemon.cache.store import Build
from kvgrove_daemon.cache.subjects import Subject
from kvgrove_daemon.cache.tiers.debug import check_tier
from kvgrove_daemon.cache.tiers.medium import MediumCorrupt, MediumFailed, MediumFull
from kvgrove_daemon.cache.tiers.restore import Below, Load
from kvgrove_protocol.errors import KvgroveError
from kvgrove_protocol.identity import Contributor

NAMESPACES = ["a", "b"]
WRITERS = [Contributor(b"t" * 16, b"u" * 16), Contributor(b"t" * 16, b"v" * 16), Contributor(b"s" * 16, b"w" * 16)]
FAILURES: list[KvgroveError | None] = [None, None, MediumFull("full"), MediumFailed("failed")]


@dataclass
class Request:
    build: Build
    below: Below | None
    load: Load | None = None
    ended: list[Load] = field(default_factory=list)


class TierMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.rig = TierRig(12, [8, 24])
        self.requests: list[Request] = []
        self.erased: set[tuple[str, Contributor]] = set()

    def teardown(self) -> None:
        for request in self.requests:
            self._end(request)
        self.rig.workers.settle()
        self.rig.tend()
        for tier in self.rig.stack.lower:
            assert tier.resident.leases.active == 0
            assert tier.stats().private == 0
        for write in self.rig.stack.writes:
            assert write.stats().bytes_in_flight == 0
        self.rig.close()

    # -- requests

    @rule(
        values=st.lists(st.integers(0, 1), min_size=1, max_size=6),
        namespace=st.sampled_from(NAMESPACES),
        writer=st.sampled_from(WRITERS),
        marks=st.tuples(st.integers(0, 2), st.booleans()),
        slow=st.booleans(),
    )
    def begin(
        self, values: list[int], namespace: str, writer: Contributor, marks: tuple[int, bool], slow: bool
    ) -> None:
        """``marks``: where private text begins, and whether a document does in the block after it."""
        private_from, document = marks
        if len(self.requests) == 2:
            return
        folds = {private_from: writer.tenant * 2}
        documents: dict[int, tuple[str, ...]] = {}
        if document:
            folds[private_from + 1] = b"d" * 32
            documents[private_from + 1] = ("handbook",)
        chain = self.rig.chain(
            values,
            namespace=namespace,
            root=namespace.encode() * 32,
            writer=Writer(writer, private_from),
            folds=folds,
            documents=documents,
        )
        match = self.rig.store.match(chain)
        below = self.rig.stack.find(chain, match.blocks, len(chain.keys), prefill_tokens_per_s=1.0 if slow else 1e9)
        build = self.rig.store.begin(match)
        if not isinstance(build, Build):
            match.release()
            if below is not None:
                below.release()
            return
        request = Request(build, below)
        if below is not None and below.parts:
            request.load = self.rig.load(build, below, request.ended.append)
        elif below is not None:
            below.release()
        self._check_bytes(build, build.reused_blocks)
        self.requests.append(request)

    @precondition(lambda self: self.requests)
    @rule(at=st.integers(0, 1), wait=st.booleans(), fail=st.booleans())
    def end(self, at: int, wait: bool, fail: bool) -> None:
        """Whoever waits for a load takes what is whole, whether or not it has ended."""
        request = self.requests.pop(at % len(self.requests))
        if wait and request.load is not None and not request.ended:
            self.rig.workers.settle()
        if fail:
            self._end(request)
            return
        build = request.build
        have = build.reused_blocks
        if request.load is not None:
            have += request.load.abandon()
            build.commit(have, lambda: self.rig.fresh)
        self._check_bytes(build, have)
        self.rig.compute(build, have, len(build.chain.keys))
        build.commit(len(build.chain.keys), lambda: self.rig.fresh)
        self._check_bytes(build, len(build.chain.keys))
        build.finish()

    def _end(self, request: Request) -> None:
        if request.load is not None:
            request.load.abandon()
        request.build.cancel()

    def _check_bytes(self, build: Build, blocks: int) -> None:
        for at in range(blocks):
            assert self.rig.arena.read_block(build.slots[at]) == body_of(build.keys[at])

    # -- between them

    @rule()
    def tend(self) -> None:
        self.rig.stack.tend()

    @precondition(lambda self: self.rig.workers.waiting)
    @rule(at=st.integers(0, 7), failure=st.sampled_from(FAILURES), tier=st.integers(0, 1))
    def work(self, at: int, failure: KvgroveError | None, tier: int) -> None:
        medium = self.rig.media[tier]
        medium.fail_writes = medium.fail_erase = failure
        if isinstance(failure, MediumFull):
            medium.fail_erase = None
        self.rig.workers.run_one(at % len(self.rig.workers.waiting))
        medium.fail_writes = medium.fail_erase = None

    @rule(limit=st.integers(1, 3))
    def poll(self, limit: int) -> None:
        for _ in range(min(limit, len(self.rig.workers.ended))):
            answer, conclude = self.rig.workers.ended.popleft()
            conclude(answer)

    @rule()
    def settle(self) -> None:
        self.rig.tend()

    @precondition(lambda self: any(len(tier.index) for tier in self.rig.stack.lower))
    @rule(tier=st.integers(0, 1), at=st.integers(0, 40))
    def damage(self, tier: int, at: int) -> None:
        """Some block turns out to be unreadable from now on."""
        index = self.rig.stack.lower[tier].index
        if len(index):
            ready = index.ready_ids().tolist()
            key = index.key(ready[at % len(ready)])
            self.rig.media[tier].fail_reads = {key: MediumCorrupt("other bytes")}

    @rule(free=st.integers(1, 12))
    def evict_pool(self, free: int) -> None:
        self.rig.store.evict_to(free, limit=4)

    @rule(tier=st.integers(0, 1), count=st.integers(1, 4))
    def evict_below(self, tier: int, count: int) -> None:
        self.rig.stack.lower[tier].resident.evict(count, RemovalCause.PRESSURE)

    @rule(namespace=st.sampled_from(NAMESPACES), ceiling=st.sampled_from([None, 2, 6]))
    def limit(self, namespace: str, ceiling: int | None) -> None:
        for tier in self.rig.stack.lower:
            tier.set_room(namespace, NamespaceRoom(ceiling=ceiling, ttl_s=5.0))

    @rule(seconds=st.sampled_from([0.5, 3.0, 10.0]))
    def sleep(self, seconds: float) -> None:
        self.rig.now += seconds

    @rule(fresh=st.booleans())
    def fence(self, fresh: bool) -> None:
        self.rig.fresh = fresh

    @rule(namespace=st.sampled_from(NAMESPACES), document=st.booleans())
    def drop(self, namespace: str, document: bool) -> None:
        subject = Subject(namespace=namespace, document="handbook" if document else None)
        self.rig.store.drop(cause=RemovalCause.VERSION, namespace=namespace, document=subject.document)
        self.rig.stack.drop(RemovalCause.VERSION, subject)
        self._nothing_of(subject)

    @rule(namespace=st.sampled_from(NAMESPACES), writer=st.sampled_from(WRITERS))
    def erase(self, namespace: str, writer: Contributor) -> None:
        subject = Subject(namespace=namespace, contributor=writer)
        self.rig.store.drop(cause=RemovalCause.ERASE, namespace=namespace, contributor=writer)
        self.rig.stack.drop(RemovalCause.ERASE, subject)
        self._nothing_of(subject)

    def _nothing_of(self, subject: Subject) -> None:
        for tier in self.rig.stack.lower:
            assert not tier.resident.drop(*subject.ids_in(tier.index), RemovalCause.CLEAR).blocks

    # -- always

    @invariant()
    def whole(self) -> None:
        check(self.rig.store)
        for tier in self.rig.stack.lower:
            check_tier(tier)

    @rule()
    def media_hold_what_is_listed(self) -> None:
        for tier, medium in zip(self.rig.stack.lower, self.rig.media, strict=True):
            for block in tier.index.ready_ids().tolist():
                chain_key = tier.index.key(block)
                slot = tier.index.slot[block]
                facts = next(facts for facts in reversed(medium.written) if facts.key == chain_key)
                assert medium.inner.read(slot, facts) == body_of(chain_key)


TestTierMachine = TierMachine.TestCase
TestTierMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
