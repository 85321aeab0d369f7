"""Random lives of loans over a store: bytes that another process may touch stay, whatever else happens (I5)."""

import itertools

from block_store_rig import BLOCK, always, chain_of, make_store, tokens
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from lending_rig import Mortals, lending_of

from kvgrove_daemon.cache.debug import check
from kvgrove_daemon.cache.eviction import POLICIES
from kvgrove_daemon.cache.foreign_leases import LeaseLimits
from kvgrove_daemon.cache.history import RemovalCause
from kvgrove_daemon.cache.lending import Loan, LoanRefusal
from kvgrove_daemon.cache.store import NoRoom

SLOTS = 20
LIMITS = LeaseLimits(slots=12, holder_slots=8, holder_leases=3, holders=3)
picks = st.integers(0, 1 << 16)


class LendingMachine(RuleBasedStateMachine):
    @initialize(policy=st.sampled_from(sorted(POLICIES)))
    def start(self, policy: str) -> None:
        self.store = make_store(SLOTS, policy=policy)
        self.processes = Mortals()
        self.lending = lending_of(self.store, self.processes, LIMITS)
        self.alive = [self.processes.new() for _ in range(4)]
        self.now = 0.0
        self.writes = itertools.count()
        self.memory = dict.fromkeys(range(SLOTS), -1)
        self.open: dict[str, Loan] = {}
        self.owner: dict[str, int] = {}  # loan -> pid
        self.lent: dict[str, list[int]] = {}  # loan -> what its slots held when it was given
        self.over: list[str] = []
        self.revoked: set[str] = set()

    @rule(values=st.lists(st.integers(0, 1), min_size=1, max_size=7), namespace=st.sampled_from(["a", "b"]))
    def serve(self, values: list[int], namespace: str) -> None:
        chain = self.chain(values, namespace)
        match = self.store.match(chain)
        build = self.store.begin(match)
        if isinstance(build, NoRoom):
            match.release()
            return
        with build:
            for slot in build.private_slots():
                self.memory[slot] = next(self.writes)
            build.commit(len(chain.keys), always)

    def chain(self, values: list[int], namespace: str):  # type: ignore[no-untyped-def]
        raw = tokens([*(value for value in values for _ in range(BLOCK)), 9])
        return chain_of(self.store, raw, root=namespace.encode() * 32, namespace=namespace)

    @rule(
        values=st.lists(st.integers(0, 1), min_size=1, max_size=7),
        namespace=st.sampled_from(["a", "b"]),
        who=picks,
        seconds=st.sampled_from([1.0, 10.0, 1000.0]),
    )
    def lend(self, values: list[int], namespace: str, who: int, seconds: float) -> None:
        holder = self.alive[who % len(self.alive)]
        with self.store.match(self.chain(values, namespace)) as match:
            loan = self.lending.lend(match, holder, seconds, self.now)
        if isinstance(loan, Loan):
            self.open[loan.id] = loan
            self.owner[loan.id] = holder.pid
            self.lent[loan.id] = [self.memory[slot] for slot in loan.slots]

    @precondition(lambda self: self.open)
    @rule(which=picks)
    def renew(self, which: int) -> None:
        loan = list(self.open.values())[which % len(self.open)]
        renewed = self.lending.renew(loan.id, 10.0, self.now)
        if loan.id in self.revoked or self.now >= loan.deadline:
            self.revoked.add(loan.id)
            assert renewed is LoanRefusal.REVOKED
        elif isinstance(renewed, Loan):
            self.open[loan.id] = renewed
        else:
            assert renewed is LoanRefusal.DROPPED

    @precondition(lambda self: self.open)
    @rule(which=picks)
    def give_back(self, which: int) -> None:
        loan = list(self.open)[which % len(self.open)]
        assert self.lending.give_back(loan)
        self.close([loan])

    @precondition(lambda self: self.over)
    @rule(which=picks)
    def give_back_again(self, which: int) -> None:
        before = self.lending.stats().not_held
        assert not self.lending.give_back(self.over[which % len(self.over)])
        assert self.lending.stats().not_held == before + 1

    def close(self, loans: list[str]) -> None:
        for loan in loans:
            del self.open[loan]
            self.revoked.discard(loan)
            self.over.append(loan)

    @rule(seconds=st.sampled_from([0.5, 9.5, 3600.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        assert self.lending.tick(self.now) == 0, "time ends nothing"
        self.revoked |= {loan.id for loan in self.open.values() if self.now >= loan.deadline}

    @rule(who=picks)
    def kill(self, who: int) -> None:
        at = who % len(self.alive)
        dead, self.alive[at] = self.alive[at], self.processes.new()
        self.processes.dead.add(dead)
        held = [loan for loan in self.open if self.owner[loan] == dead.pid]
        assert self.lending.tick(self.now) == len(held)
        self.close(held)

    @rule(count=st.integers(1, 8))
    def evict(self, count: int) -> None:
        self.store.evict_to(self.store.stats().free + count, limit=count)

    @rule(namespace=st.sampled_from(["a", "b"]))
    def drop(self, namespace: str) -> None:
        self.store.drop(cause=RemovalCause.ERASE, namespace=namespace)

    @rule()
    def clear(self) -> None:
        self.store.clear()

    @invariant()
    def lent_bytes_stay(self) -> None:
        for loan in self.open.values():
            assert [self.memory[slot] for slot in loan.slots] == self.lent[loan.id]

    @invariant()
    def adds_up(self) -> None:
        check(self.store)
        stats, lent = self.lending.stats(), {slot for loan in self.open.values() for slot in loan.slots}
        quarantined = {slot for loan in self.revoked for slot in self.open[loan].slots}
        assert (stats.loans, stats.lent_slots) == (len(self.open), len(lent))
        assert (stats.quarantined_loans, stats.quarantined_slots) == (len(self.revoked), len(quarantined))
        assert stats.lent_slots <= LIMITS.slots
        assert stats.holders <= LIMITS.holders
        assert self.store.stats().leases == len(self.open)
        assert self.store.stats().double_releases == 0

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        self.processes.dead.update(self.alive)
        self.lending.tick(self.now)
        self.store.clear()
        assert self.store.stats().free == SLOTS
        check(self.store)


LendingMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestLending = LendingMachine.TestCase
