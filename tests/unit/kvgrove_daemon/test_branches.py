"""Continuations of one block: capped for each contributor, at their own cost alone (I11)."""

import pytest
from block_store_rig import BLOCK, Clock, caller, chain_of, make_store, reuse, run_of, serve

from kvgrove_daemon.cache.contributors import Writer
from kvgrove_daemon.cache.debug import check
from kvgrove_daemon.cache.eviction import POLICIES
from kvgrove_daemon.cache.history import RemovalCause
from kvgrove_daemon.cache.rooms import NamespaceRoom
from kvgrove_daemon.cache.store import BlockStore, Chain


def branch(store: BlockStore, tenant: int, user: int, n: int) -> Chain:
    raw = run_of(0, 2 * BLOCK) + run_of(1000 * user + 20 * n, BLOCK + 1)
    return chain_of(store, raw, writer=Writer(caller(tenant, user), private_from=2))


def test_beyond_the_cap_a_contributor_loses_their_own_coldest_branch() -> None:
    clock = Clock()
    store = make_store(100, clock=clock)
    store.set_room("ns", NamespaceRoom(max_branches=3))
    for n in range(3):
        clock.now += 1
        serve(store, branch(store, 1, 1, n))
    serve(store, branch(store, 1, 2, 0))
    clock.now += 1
    reuse(store, branch(store, 1, 1, 0))
    clock.now += 1
    serve(store, branch(store, 1, 1, 3))
    assert [reuse(store, branch(store, 1, 1, n)) for n in range(4)] == [12, 8, 12, 12]
    assert reuse(store, branch(store, 1, 2, 0)) == 12
    assert store.stats().removed == {RemovalCause.BRANCHES: 1}
    check(store)


def test_i11_one_contributors_branches_never_cost_anothers() -> None:
    clock = Clock()
    store = make_store(200, clock=clock)
    store.set_room("ns", NamespaceRoom(max_branches=4))
    for n in range(4):
        serve(store, branch(store, 1, 2, n))
    for n in range(100):
        clock.now += 1
        serve(store, branch(store, 1, 1, n))
    assert [reuse(store, branch(store, 1, 2, n)) for n in range(4)] == [12] * 4
    assert len(store._resident.branches) == 1
    assert store.stats().ready == 2 + 4 + 4
    check(store)


def test_a_branch_that_others_use_too_is_not_given_up_and_no_further_one_is_stored() -> None:
    store = make_store(100)
    store.set_room("ns", NamespaceRoom(max_branches=1))
    first = branch(store, 1, 1, 0)
    serve(store, first)
    serve(store, chain_of(store, first.tokens, writer=Writer(caller(1, 2), private_from=2)))
    serve(store, branch(store, 1, 1, 1))
    assert reuse(store, first) == 12
    assert reuse(store, branch(store, 1, 1, 1)) == 8
    check(store)


def test_beginnings_of_chains_are_no_branches() -> None:
    store = make_store(100)
    store.set_room("ns", NamespaceRoom(max_branches=1))
    for n in range(10):
        serve(store, chain_of(store, run_of(100 * n, 9), writer=Writer(caller(1, 1))))
    assert store.stats().ready == 20


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_one_shot_suffixes_do_not_push_out_trunks(policy: str) -> None:
    """Ten trunks of eight blocks in turn, each with a one-shot suffix of two: the trunks stay, the suffixes go."""
    clock = Clock()
    store = make_store(110, policy=policy, clock=clock)
    store.set_room("ns", NamespaceRoom(max_branches=4))
    hits = []
    for n in range(600):
        clock.now += 1
        raw = run_of(10_000 * (n % 10), 8 * BLOCK) + run_of(1_000_000 + 100 * n, 2 * BLOCK + 1)
        hits.append(serve(store, chain_of(store, raw, writer=Writer(caller(1, 1), private_from=8))))
    assert hits[10:] == [8 * BLOCK] * 590
    check(store)
