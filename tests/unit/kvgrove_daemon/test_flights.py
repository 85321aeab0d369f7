"""One build per key and party: who leads, who waits, for how long, and who takes over (CON-09, I2, I5, I11)."""

import re
from collections.abc import Sequence

import msgspec
import pytest

from kvgrove_daemon.cache import flight_life
from kvgrove_daemon.cache.backoff import Backoff
from kvgrove_daemon.cache.chains import marks
from kvgrove_daemon.cache.flight_life import (
    TRANSITIONS,
    FlightEvent,
    FlightState,
    ForbiddenFlight,
    Wake,
    WakeCause,
    step,
)
from kvgrove_daemon.cache.flights import WARM_UP, Flights, Pace, Wanted
from kvgrove_protocol.chain import Span, SpanKind, block_keys
from kvgrove_protocol.identity import Caller, GenerationInputs, Isolation, Purge, RealmInputs, generation

UNMEASURED = Pace(0, 0)
BLOCK = 4
KEYS = [bytes([n]) * 32 for n in range(8)]


def make(*, max_wait_s: float = 100.0, base_s: float = 1.0, max_s: float = 8.0) -> Flights:
    return Flights(max_wait_s=max_wait_s, backoff=Backoff(base_s=base_s, max_s=max_s, jitter=lambda: 1.0))


def join(
    flights: Flights,
    waiter: str,
    *,
    party: str | None = "acme",
    keys: Sequence[bytes] = KEYS,
    matched: int = 0,
    now: float = 0.0,
    pace: Pace = UNMEASURED,
) -> bool:
    return flights.join(waiter, Wanted(party, keys, matched, len(keys), BLOCK), now, pace)


# -- the table ---------------------------------------------------------------------------------------------------------


def test_the_diagram_in_the_docstring_is_the_table() -> None:
    drawn = {
        (FlightState[before], FlightEvent(event)): FlightState[after]
        for before, event, after in re.findall(
            r"^    ([A-Z]+) --(\w+)--> ([A-Z]+)$", flight_life.__doc__ or "", re.MULTILINE
        )
    }
    assert drawn == dict(TRANSITIONS)


@pytest.mark.parametrize("state", FlightState)
@pytest.mark.parametrize("event", FlightEvent)
def test_what_the_table_does_not_hold_is_refused(state: FlightState, event: FlightEvent) -> None:
    if (state, event) in TRANSITIONS:
        assert step(state, event) is TRANSITIONS[state, event]
    else:
        with pytest.raises(ForbiddenFlight, match=state):
            step(state, event)


# -- who leads, who waits ----------------------------------------------------------------------------------------------


def test_the_first_leads_and_a_second_waits_until_what_they_share_is_ready() -> None:
    flights = make()
    assert not join(flights, "1")
    flights.lead("1", "acme", KEYS, 0)
    branch = [*KEYS[:3], *(bytes([n]) * 32 for n in range(90, 95))]
    assert join(flights, "2", keys=branch)
    assert flights.shared("2") == 3
    assert flights.progress("1", 2) == []
    assert flights.progress("1", 3) == [Wake("2", WakeCause.COVERED)]
    assert not join(flights, "2", keys=branch, matched=3)  # from here on nobody computes it
    assert flights.ran_out("2") == range(0)
    flights.lead("2", "acme", branch, 3)
    flights.settle("2")
    assert (flights.stats().led, flights.stats().joined, flights.stats().waiting) == (2, 1, 0)
    assert flights.stats().take_overs == 0


@pytest.mark.parametrize("shared", range(1, 9))
def test_the_shared_part_is_found_wherever_it_ends(shared: int) -> None:
    flights = make()
    flights.lead("1", "acme", KEYS, 0)
    other = [*KEYS[:shared], *(bytes([n]) * 32 for n in range(90, 98 - shared))]
    assert join(flights, "2", keys=other)
    assert flights.shared("2") == shared


def test_what_is_ready_or_never_reused_is_not_waited_for() -> None:
    flights = make()
    flights.lead("1", "acme", KEYS, 2)
    assert not join(flights, "2", matched=0)  # block 0 was there when the leader began: it has gone since
    assert not flights.join("2", Wanted("acme", KEYS, 8, 8, BLOCK), 0.0, UNMEASURED)
    flights.progress("1", 4)
    assert not join(flights, "2", matched=3)
    assert join(flights, "2", matched=4)


def test_keys_that_fly_keep_their_leader() -> None:
    flights = make()
    flights.lead("1", "acme", KEYS[:4], 0)
    flights.lead("2", "acme", KEYS, 0)  # it had waited long enough, say
    assert join(flights, "3")
    assert flights.end("2", 0.0) == []
    assert flights.end("1", 0.0) == [Wake("3", WakeCause.ENDED)]
    assert not join(flights, "3")


# -- who does not wait for whom ----------------------------------------------------------------------------------------


def test_i2_different_tenants_never_wait_for_each_other_even_for_declared_text() -> None:
    flights = make()
    flights.lead("1", "acme", KEYS, 0)
    assert not join(flights, "2", party="other")
    flights.lead("2", "other", KEYS, 0)
    assert join(flights, "3", party="other")
    assert flights.end("1", 0.0, failed=True) == []
    assert not join(flights, "4", party="new")  # nor for the pause after another's failure
    assert flights.progress("2", 8) == [Wake("3", WakeCause.COVERED)]


def test_i2_callers_without_a_tenant_wait_for_nobody_and_nobody_for_them() -> None:
    flights = make()
    flights.lead("1", None, KEYS, 0)
    assert not join(flights, "2", party=None)
    assert not join(flights, "3", party="acme")
    flights.lead("4", "acme", KEYS, 0)
    assert not join(flights, "5", party=None)


@pytest.mark.parametrize("party", ["acme", None])
def test_warm_up_is_waited_for_by_all(party: str | None) -> None:
    flights = make()
    flights.lead("1", WARM_UP, KEYS, 0)
    assert join(flights, "2", party=party)
    assert flights.progress("1", 8) == [Wake("2", WakeCause.COVERED)]


INPUTS = GenerationInputs(weights="w", tokenizer="t", chat_template="c", kv_dtype="float32", block_size=4)
REALM = RealmInputs(generation=generation(INPUTS), namespace_uid="uid", purge=Purge(1, b"n"), policy_version=1)


def keys_of(realm: RealmInputs, tenant: str) -> list[bytes]:
    """Of 3 blocks of private text, as a node computes them."""
    spans = [Span(SpanKind.PRIVATE, 0, 12)]
    private = realm.private_realm(Isolation.TENANT, Caller(tenant=tenant), throwaway=lambda: b"once")
    folds = marks(spans, private, 4).folds
    return block_keys(realm.shared_realm(), bytes(48), folds, block_size=4)


@pytest.mark.parametrize(
    ("realm", "tenant"),
    [
        (REALM, "other"),
        ({"adapter": "lora"}, "acme"),
        ({"weights": "w2"}, "acme"),
        ({"namespace_uid": "uid-2"}, "acme"),
        ({"policy_version": 2}, "acme"),
        ({"purge": Purge(2, b"n")}, "acme"),
    ],
)
def test_con_09_requests_that_differ_in_any_option_have_flights_of_their_own(
    realm: RealmInputs | dict[str, object], tenant: str
) -> None:
    if isinstance(realm, dict):
        inputs = {name: value for name, value in realm.items() if name in INPUTS.__struct_fields__}
        rest = {name: value for name, value in realm.items() if name not in inputs}
        named = generation(msgspec.structs.replace(INPUTS, **inputs)) if inputs else REALM.generation
        realm = msgspec.structs.replace(REALM, generation=named, **rest)
    flights, one, other = make(), keys_of(REALM, "acme"), keys_of(realm, tenant)
    flights.lead("1", "acme", one, 0)
    assert not join(flights, "2", party=tenant, keys=other)
    flights.lead("2", tenant, other, 0)
    assert flights.stats().led == 2
    assert join(flights, "3", party="acme", keys=one)
    assert join(flights, "4", party=tenant, keys=other)
    assert flights.progress("2", 3) == [Wake("4", WakeCause.COVERED)]


# -- take-over ---------------------------------------------------------------------------------------------------------


def test_a_leader_that_ends_wakes_all_and_the_first_of_them_takes_over() -> None:
    flights = make()
    flights.lead("1", "acme", KEYS, 0)
    assert all(join(flights, waiter) for waiter in ("2", "3", "4"))
    flights.settle("2")  # its caller has gone
    assert flights.end("1", 0.0) == [Wake("3", WakeCause.ENDED), Wake("4", WakeCause.ENDED)]
    assert not join(flights, "3")
    flights.lead("3", "acme", KEYS, 0)
    assert join(flights, "4")
    assert flights.stats().take_overs == 1
    assert flights.end("1", 0.0) == []
    assert flights.progress("3", 8) == [Wake("4", WakeCause.COVERED)]


def test_a_silent_leader_is_succeeded_and_never_leads_again() -> None:
    flights = make()
    flights.lead("1", "acme", KEYS, 0)
    pace = Pace(queued_tokens=32, tokens_per_s=8)
    assert join(flights, "2", pace=pace)
    assert join(flights, "3", now=1.0, pace=pace)
    assert flights.next_deadline == 8.0
    assert flights.tick(7.9, 8.0) == []
    assert flights.tick(8.0, 8.0) == [Wake("2", WakeCause.TIMED_OUT), Wake("3", WakeCause.ENDED)]
    assert flights.ran_out("2") == range(8)
    assert not join(flights, "2", now=8.0)
    flights.lead("2", "acme", KEYS, 0)
    flights.settle("2")
    assert join(flights, "3", now=8.0, pace=pace)
    assert flights.progress("1", 8) == []  # it speaks again: nobody waits for it any more
    assert flights.end("1", 8.0) == []
    assert flights.progress("2", 8) == [Wake("3", WakeCause.COVERED)]
    assert (flights.stats().take_overs, flights.stats().time_outs) == (1, 1)


def test_a_leader_that_is_only_slow_keeps_its_flight() -> None:
    flights = make()
    flights.lead("1", "acme", KEYS, 0)
    assert join(flights, "2", pace=Pace(0, 32))
    flights.progress("1", 1)
    assert flights.tick(1.0, 32.0) == [Wake("2", WakeCause.TIMED_OUT)]
    assert not join(flights, "2", matched=1, now=1.0)  # it has waited enough, and computes beside the leader
    flights.lead("2", "acme", KEYS, 1)
    assert flights.stats().take_overs == 0
    assert join(flights, "3", matched=1, now=1.0)
    assert flights.progress("1", 8) == [Wake("3", WakeCause.COVERED)]


# -- bounds ------------------------------------------------------------------------------------------------------------


def test_i11_a_wait_is_no_longer_than_computing_would_take() -> None:
    flights = make()
    flights.lead("1", "acme", KEYS, 0)
    assert join(flights, "2", matched=0, pace=Pace(queued_tokens=48, tokens_per_s=16))
    assert flights.next_deadline == (12 + 8) / 4


def test_i11_the_bound_is_judged_by_the_rate_of_now_when_it_runs_out() -> None:
    flights = make(max_wait_s=7.0)
    flights.lead("1", "acme", KEYS, 0)
    assert join(flights, "2", pace=Pace(0, 32))
    assert flights.tick(1.0, 8.0) == []  # the node is slower than it was, for everybody
    assert flights.next_deadline == 4.0
    assert flights.tick(4.0, 4.0) == []
    assert flights.next_deadline == 7.0
    assert flights.tick(7.0, 1.0) == [Wake("2", WakeCause.TIMED_OUT)]


def test_i11_all_waits_of_one_request_together_are_bounded() -> None:
    flights = make(max_wait_s=10.0)
    now = 0.0
    for leader in range(100, 200):
        flights.lead(str(leader), "acme", KEYS, 0)
        if not join(flights, "2", now=now):
            break
        assert flights.next_deadline == 10.0
        now += 3.0
        flights.end(str(leader), now)
    assert now == 12.0


def test_i11_after_failures_a_key_is_tried_again_ever_more_seldom() -> None:
    flights = make(max_wait_s=1000.0)
    flights.lead("1", "acme", KEYS, 0)
    assert join(flights, "2")
    now, pauses = 0.0, []
    for leader in ("1", "2", "3", "4", "5", "6"):
        flights.end(leader, now, failed=True)
        waiter = str(int(leader) + 1)
        assert join(flights, waiter, now=now)
        assert flights.next_deadline is not None
        pauses.append(flights.next_deadline - now)
        now = flights.next_deadline
        assert flights.tick(now, 0.0) == [Wake(waiter, WakeCause.RETRY)]
        assert not join(flights, waiter, now=now)
        flights.lead(waiter, "acme", KEYS, 0)
        flights.settle(waiter)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    assert flights.stats().take_overs == 1  # only "2" had waited for another; the others found none
    flights.progress("7", 8)
    assert not join(flights, "9", now=now)


def test_failures_are_forgotten_by_success_by_time_and_by_number() -> None:
    backoff = Backoff(base_s=1.0, max_s=4.0, jitter=lambda: 0.0, keys=3)
    backoff.failed("a", 0.0)
    assert backoff.until("a", 0.0) == 0.5  # the other half is jitter
    backoff.failed("a", 1.0)
    assert backoff.until("a", 1.0) == 2.0
    assert backoff.until("a", 2.0) is None
    backoff.succeeded(["a"])
    backoff.failed("a", 3.0)
    assert backoff.until("a", 3.0) == 3.5
    backoff.failed("a", 100.0)
    assert backoff.until("a", 100.0) == 100.5
    for key in "bcd":
        backoff.failed(key, 100.0)
    assert len(backoff) == 3
    assert backoff.until("a", 100.0) is None


def test_nothing_is_left_of_flights_that_ended() -> None:
    flights = make()
    for n in range(50):
        flights.lead(str(n), f"tenant-{n}", KEYS, 0)
        join(flights, f"w{n}", party=f"tenant-{n}")
    for n in range(50):
        flights.end(str(n), 0.0)
        flights.settle(f"w{n}")
    assert (flights._flights, flights._led, flights._waits) == ({}, {}, {})
