"""Lending over a store: what a loan protects, who frees it, and that nothing leaks (I5, I11; MEM-01, CON-06)."""

from __future__ import annotations

import random

import pytest
from block_store_rig import BLOCK, chain_of, make_store, reuse
from lending_rig import Mortals, lend, lending_of, look_up, prompt

from kvgrove_daemon.cache.debug import check
from kvgrove_daemon.cache.foreign_leases import Holder, LeaseEvent, LeaseLimits
from kvgrove_daemon.cache.history import RemovalCause
from kvgrove_daemon.cache.lending import Lending, Loan, LoanRefusal, share_of
from kvgrove_daemon.cache.store import BlockStore
from kvgrove_protocol.errors import Malformed


class Rig:
    def __init__(self, slots: int = 16, limits: LeaseLimits | None = None) -> None:
        self.store = make_store(slots)
        self.processes = Mortals()
        self.lending = lending_of(self.store, self.processes, limits or LeaseLimits(slots=slots, holder_slots=slots))
        self.raw = prompt(0, 3, BLOCK)
        look_up(self.store, self.raw)

    def lend(self, holder: Holder, now: float = 0.0) -> Loan:
        loan = lend(self.store, self.lending, self.raw, holder, now)
        assert isinstance(loan, Loan), loan
        return loan

    def press(self) -> set[int]:
        """Requests of other prompts, more than the pool holds; answers the slots that they wrote."""
        return {slot for number in range(1, 20) for slot in look_up(self.store, prompt(number, 2, BLOCK))[1]}


def test_i5_a_loan_past_its_time_keeps_its_slots_from_reuse_until_it_is_given_back() -> None:
    rig = Rig()
    loan = rig.lend(rig.processes.new())
    assert len(loan.slots) == 3
    assert rig.lending.tick(3600.0) == 0
    assert rig.press().isdisjoint(loan.slots)
    stats = rig.lending.stats()
    assert (stats.loans, stats.quarantined_loans, stats.quarantined_slots, stats.revoked) == (1, 1, 3, 1)
    assert reuse(rig.store, chain_of(rig.store, rig.raw)) == 3 * BLOCK, "readable still: nobody dropped it"
    check(rig.store)
    assert rig.lending.give_back(loan.id)
    assert not rig.press().isdisjoint(loan.slots)
    assert rig.lending.stats().ended == {LeaseEvent.GIVE_BACK: 1}
    assert rig.store.stats().leases == 0
    check(rig.store)


def test_i5_dropped_blocks_are_unreadable_at_once_and_their_slots_wait_for_the_holder() -> None:
    rig = Rig()
    holder = rig.processes.new()
    loan = rig.lend(holder)
    assert rig.store.drop(cause=RemovalCause.ERASE, namespace="ns").held == 3
    rig.lending.tick(31.0)
    assert reuse(rig.store, chain_of(rig.store, rig.raw)) == 0
    assert rig.press().isdisjoint(loan.slots)
    assert rig.store.stats().retiring == 3
    rig.processes.dead.add(holder)
    assert rig.lending.tick(32.0) == 1
    assert rig.store.stats().retiring == 0
    assert rig.lending.stats().ended == {LeaseEvent.HOLDER_GONE: 1}
    check(rig.store)


def test_what_was_erased_cannot_be_kept_by_renewing() -> None:
    rig = Rig()
    loan = rig.lend(rig.processes.new())
    renewed = rig.lending.renew(loan.id, 30.0, 20.0)
    assert isinstance(renewed, Loan)
    assert renewed.deadline == 50.0
    rig.store.drop(cause=RemovalCause.ERASE, namespace="ns")
    assert rig.lending.renew(loan.id, 30.0, 21.0) is LoanRefusal.DROPPED
    rig.lending.tick(50.0)
    assert rig.lending.renew(loan.id, 30.0, 51.0) is LoanRefusal.REVOKED
    rig.lending.give_back(loan.id)
    assert rig.lending.renew(loan.id, 30.0, 52.0) is LoanRefusal.NOT_HELD
    assert rig.lending.stats().refused == {
        LoanRefusal.DROPPED: 1,
        LoanRefusal.REVOKED: 1,
        LoanRefusal.NOT_HELD: 1,
    }


def test_a_refused_match_keeps_its_lease_and_its_reason_is_counted() -> None:
    rig = Rig(limits=LeaseLimits(slots=16, holder_slots=2))
    holder = rig.processes.new()
    with rig.store.match(chain_of(rig.store, rig.raw)) as match:
        assert rig.lending.lend(match, holder, 30.0, 0.0) is LoanRefusal.HOLDER_SLOTS
        assert rig.lending.lend(match, None, 30.0, 0.0) is LoanRefusal.HOLDER_UNSEEN
        assert match.lease is not None
        assert match.lease.active
        rig.store.drop(cause=RemovalCause.VERSION, namespace="ns")
        assert rig.lending.lend(match, holder, 30.0, 0.0) is LoanRefusal.DROPPED
    assert lend(rig.store, rig.lending, rig.raw, holder) is LoanRefusal.NOTHING_MATCHED
    assert sum(rig.lending.stats().refused.values()) == 4
    assert rig.store.stats().leases == 0
    check(rig.store)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_that_is_none_is_refused_by_name(seconds: float) -> None:
    rig = Rig()
    with rig.store.match(chain_of(rig.store, rig.raw)) as match, pytest.raises(Malformed, match="seconds"):
        rig.lending.lend(match, rig.processes.new(), seconds, 0.0)


def test_nobody_gets_more_time_at_once_than_the_most() -> None:
    rig = Rig()
    with rig.store.match(chain_of(rig.store, rig.raw)) as match:
        loan = rig.lending.lend(match, rig.processes.new(), 1e9, 5.0)
    assert isinstance(loan, Loan)
    assert loan.deadline == 65.0


def test_loans_leave_room_for_everybody_else() -> None:
    assert share_of(100) == LeaseLimits(slots=50, holder_slots=25)
    assert share_of(1) == LeaseLimits(slots=1, holder_slots=1)
    rig = Rig(slots=16, limits=share_of(16, percent=25, holder_percent=25))
    holders = [rig.processes.new() for _ in range(4)]
    for number, holder in enumerate(holders, 1):
        look_up(rig.store, prompt(number, 2, BLOCK))
        lend(rig.store, rig.lending, prompt(number, 2, BLOCK), holder)
    assert rig.lending.stats().lent_slots == 4
    assert rig.lending.stats().refused == {LoanRefusal.TOO_MANY_SLOTS: 2}
    assert look_up(rig.store, prompt(9, 9, BLOCK))[1], "a prompt of most of the pool is served all the same"


def test_con_06_a_loan_given_back_by_two_and_after_its_end_counts_and_frees_once() -> None:
    rig = Rig()
    holder = rig.processes.new()
    first, second = rig.lend(holder), rig.lend(holder)
    assert [rig.lending.give_back(first.id), rig.lending.give_back(first.id)] == [True, False]
    rig.lending.tick(31.0)
    rig.processes.dead.add(holder)
    rig.lending.tick(32.0)
    assert not rig.lending.give_back(second.id), "an acknowledgement that comes after the observed end"
    assert rig.lending.stats().not_held == 2
    assert rig.store.stats().leases == 0
    assert rig.store.stats().double_releases == 0
    check(rig.store)


def _hits(store: BlockStore, lookups: int, seed: int) -> float:
    """Share of reused tokens over ``lookups`` of 40 prompts, of which the pool holds less than half."""
    chosen = random.Random(seed)
    reused = sum(look_up(store, prompt(int(chosen.paretovariate(0.7)) % 40, 4, BLOCK))[0] for _ in range(lookups))
    return reused / (lookups * 4 * BLOCK)


def test_mem_01_ten_thousand_look_ups_with_loans_of_killed_processes_pin_nothing_for_ever() -> None:
    """Most loans are never given back: their holders are killed at random, or are silent past their time."""
    store, processes = make_store(64), Mortals()
    lending: Lending = lending_of(store, processes, share_of(64))
    chance, chosen = random.Random(3), random.Random(1)
    holders = [processes.new() for _ in range(8)]
    loans: list[str] = []
    most = refused = 0
    for now in range(10_000):
        raw = prompt(int(chosen.paretovariate(0.7)) % 40, 4, BLOCK)
        look_up(store, raw)
        at = chance.randrange(len(holders))
        loan = lend(store, lending, raw, holders[at], float(now))
        if isinstance(loan, LoanRefusal):
            refused += 1
        else:
            loans.append(loan.id)
        if loans and chance.random() < 0.2:
            lending.give_back(loans.pop(chance.randrange(len(loans))))
        if chance.random() < 0.02:
            processes.dead.add(holders[at])
            holders[at] = processes.new()
        lending.tick(float(now))
        most = max(most, lending.stats().lent_slots)
    stats = lending.stats()
    assert most <= 32
    assert min(refused, stats.lent, stats.revoked, *stats.ended.values()) > 100, "every way was gone"
    processes.dead.update(holders)
    lending.tick(10_100.0)
    assert lending.stats().loans == lending.stats().lent_slots == lending.stats().quarantined_slots == 0
    assert store.stats().leases == 0
    check(store)
    plain = make_store(64)
    for each in (store, plain):
        _hits(each, 500, seed=1)  # the same near past
    assert _hits(store, 1_000, seed=2) == _hits(plain, 1_000, seed=2)
