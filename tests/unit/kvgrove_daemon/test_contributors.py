"""Whose text a block may hold: what an erasure of a tenant or a user takes, and that nothing of it comes back (I8)."""

import pytest
from block_store_rig import BLOCK, ROOT, Events, always, begin, chain_of, make_store, reuse, run_of, serve, tokens
from hypothesis import given
from hypothesis import strategies as st

from kvgrove_daemon.cache.contributors import (
    ANYBODY,
    DECLARED,
    MANY,
    MOST,
    Tag,
    Writer,
    covers,
    joined,
    means,
    owner,
    tag_of,
)
from kvgrove_daemon.cache.debug import check
from kvgrove_daemon.cache.eviction import CostAware
from kvgrove_daemon.cache.history import RemovalCause
from kvgrove_daemon.cache.incoming import NewBlocks
from kvgrove_daemon.cache.store import BlockStore, Chain
from kvgrove_protocol.identity import NOBODY, Contributor
from kvgrove_protocol.reasons import BypassReason


def who(tenant: int, user: int | None = None) -> Contributor:
    return Contributor(bytes([tenant]) * 16, bytes([user]) * 16 if user is not None else b"")


ALICE, BOB, CAROL = who(1, 1), who(1, 2), who(2, 3)
contributors = st.builds(who, st.integers(1, 4), st.one_of(st.none(), st.integers(1, 4))) | st.just(MANY)
tags = st.frozensets(contributors, max_size=6).map(lambda found: joined(DECLARED, found))


def said(store: BlockStore, raw: bytes, by: Contributor, private_from: int = 0) -> Chain:
    return chain_of(store, raw, writer=Writer(by, private_from))


def erase(store: BlockStore, by: Contributor) -> int:
    return store.drop(cause=RemovalCause.ERASE, namespace="ns", contributor=by).blocks


@given(tags, tags, contributors.filter(lambda found: found != MANY))
def test_i8_a_joined_tag_answers_to_whatever_either_answered_to(one: Tag, other: Tag, by: Contributor) -> None:
    both = joined(one, other)
    assert not (means(by, one) or means(by, other)) or means(by, both)
    assert len(both) <= MOST
    assert joined(both, one) == both == joined(both, other)


@given(tags, contributors)
def test_i8_what_is_covered_gains_nothing_by_joining(tag: Tag, by: Contributor) -> None:
    assert covers(joined(tag, frozenset({by})), by)
    assert covers(tag, by) == (joined(tag, frozenset({by})) == tag)


def test_i11_users_melt_into_their_tenant_and_tenants_into_many() -> None:
    tag = DECLARED
    for user in range(1, MOST + 2):
        tag = joined(tag, tag_of(who(1, user)))
    assert tag == {who(1)}
    for tenant in range(2, MOST + 2):
        tag = joined(tag, tag_of(who(tenant, 1)))
    assert tag == ANYBODY
    assert means(who(99, 99), tag)


def test_owner_of_a_tag() -> None:
    assert owner(DECLARED) == NOBODY
    assert owner(tag_of(ALICE)) == ALICE
    assert owner(frozenset({ALICE, BOB})) == who(1)
    assert owner(frozenset({ALICE, CAROL})) == MANY
    assert tag_of(NOBODY) == ANYBODY


def test_an_erasure_of_a_user_takes_what_they_built_and_all_that_follows_it_and_no_declared_text() -> None:
    events = Events()
    store = make_store(40, sink=events)
    declared = run_of(0, 2 * BLOCK)
    serve(store, said(store, declared + run_of(100, 9), ALICE, 2))
    serve(store, said(store, declared + run_of(200, 9), BOB, 2))
    serve(store, said(store, declared + run_of(100, 17), BOB, 2))  # goes on where alice stopped
    assert erase(store, ALICE) == 4
    assert reuse(store, said(store, declared + run_of(100, 17), BOB, 2)) == 2 * BLOCK
    assert reuse(store, said(store, declared + run_of(200, 9), BOB, 2)) == 4 * BLOCK
    assert events.ready == set(store.snapshot())
    check(store)


def test_an_erasure_of_a_user_takes_what_they_only_reused() -> None:
    store = make_store(40)
    raw = run_of(100, 13)
    serve(store, said(store, raw, BOB))
    serve(store, said(store, raw, ALICE))
    assert erase(store, ALICE) == 3
    check(store)


def test_two_users_who_compute_the_same_at_once_are_both_found() -> None:
    store = make_store(40)
    raw = run_of(100, 13)
    one, other = begin(store, said(store, raw, BOB)), begin(store, said(store, raw, ALICE))
    one.commit(3, always)
    other.commit(3, always)
    one.finish()
    other.finish()
    assert store.stats().duplicates == 3
    assert erase(store, ALICE) == 3


def test_an_erasure_of_a_tenant_takes_all_its_users_and_nobody_elses() -> None:
    store = make_store(40)
    for n, by in enumerate((ALICE, BOB, CAROL, who(1))):
        serve(store, said(store, run_of(100 * n, 9), by))
    assert erase(store, who(1)) == 6
    assert store.stats().ready == 2


def test_what_cannot_be_told_apart_goes_with_every_erasure() -> None:
    store = make_store(60)
    serve(store, said(store, run_of(0, 9), who(1)))  # a user of the tenant, nobody knows which
    serve(store, said(store, run_of(100, 9), NOBODY))  # somebody
    serve(store, chain_of(store, run_of(200, 9)))  # a caller that says nothing about it
    serve(store, said(store, run_of(300, 9), CAROL))
    assert erase(store, ALICE) == 6
    assert store.stats().ready == 2


def test_a_block_with_more_contributors_than_are_told_apart_goes_with_each_of_them() -> None:
    store = make_store(60)
    raw = run_of(0, 9)
    for user in range(1, MOST + 3):
        serve(store, said(store, raw, who(1, user)))
    assert erase(store, who(2, 1)) == 0
    assert erase(store, who(1, 200)) == 2


def test_an_erasure_of_another_namespace_takes_nothing() -> None:
    store = make_store(40)
    serve(store, said(store, run_of(0, 9), ALICE))
    assert store.drop(cause=RemovalCause.ERASE, namespace="other", contributor=ALICE).blocks == 0


def test_an_erasure_names_the_tenant_too() -> None:
    store = make_store(4)
    with pytest.raises(ValueError, match="tenant"):
        store.drop(cause=RemovalCause.ERASE, contributor=Contributor(user=b"u" * 16))


def test_i4_a_build_under_way_stores_nothing_more_of_an_erased_user() -> None:
    store = make_store(40)
    alice, bob = begin(store, said(store, run_of(0, 17), ALICE)), begin(store, said(store, run_of(50, 17), BOB))
    alice.commit(2, always)
    dropped = store.drop(cause=RemovalCause.ERASE, contributor=ALICE)
    assert (dropped.blocks, dropped.builds) == (2, 1)
    assert alice.commit(4, always) == []
    assert alice.bypass is BypassReason.FENCE_MOVED
    assert len(bob.commit(4, always)) == 4
    alice.finish()
    bob.finish()
    check(store)


def test_i3_a_chain_handed_out_before_an_erasure_is_stored_no_more_and_a_new_one_is() -> None:
    store = make_store(40)
    old, bobs = said(store, run_of(0, 17), ALICE), said(store, run_of(100, 17), BOB)
    matched = store.match(old)
    erase(store, ALICE)
    build = store.begin(matched)
    assert not hasattr(build, "wanted")
    assert build.commit(4, always) == []
    build.finish()
    assert serve(store, old) == 0
    assert store.stats().ready == 0
    serve(store, bobs)
    serve(store, said(store, run_of(0, 17), ALICE))
    assert store.stats().ready == 8


def test_a_chain_older_than_the_erasures_that_are_remembered_counts_as_meant() -> None:
    store = make_store(40)
    old = said(store, run_of(0, 17), ALICE)
    for n in range(300):
        store.drop(cause=RemovalCause.ERASE, namespace=f"other-{n}")
    serve(store, old)
    assert store.stats().ready == 0


def test_an_erasure_leaves_no_tokens_keys_or_history() -> None:
    store = make_store(12, policy="cost-aware")
    secret = tokens([4242] * 9)
    serve(store, said(store, secret, ALICE))
    for n in range(9):  # what gave way before the erasure counts as well
        serve(store, said(store, run_of(100 * n, 9), BOB))
    chain = said(store, secret, ALICE)
    assert store.gone(chain.keys[0]) is not None
    serve(store, chain)
    erase(store, ALICE)
    resident = store._resident
    assert not (resident.index._tokens == 4242).any()
    assert store.gone(chain.keys[0]) is None
    policy = resident.policy.of("ns")
    assert isinstance(policy, CostAware)
    assert not any(policy._departed._tags)
    assert not any(key in resident.index._keys for key in chain.keys)
    assert not any(secret in known.chain.tokens for known in store._chains._known)
    check(store)


def test_what_comes_back_from_another_tier_is_noted_on_the_blocks_before_it() -> None:
    """Alice's continuation outlived, below, a stay in the pool in which only bob reused what she had built on."""
    store = make_store(40)
    serve(store, said(store, run_of(0, 2 * BLOCK + 1), BOB, 1))
    chain = said(store, run_of(0, 4 * BLOCK + 1), ALICE, 1)
    with store.match(chain).take_lease() as lease:
        slots = store.resident.allocate(2)
        assert isinstance(slots, list)
        restored = NewBlocks("ns", ROOT, chain.keys[2:], chain.array(2, 4), slots, {}, {0: tag_of(ALICE)})
        admitted = store.resident.admit(lease.tail, restored)
        assert admitted.stored == 2
        lease.move(admitted.tail)
    check(store)
    assert erase(store, ALICE) == 3
