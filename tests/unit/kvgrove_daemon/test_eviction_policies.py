"""What sets the policies apart, and what they all keep: leaves first, nothing that is read, bounded memory (I5, I6)."""

import pytest
from block_store_rig import begin, chain_of, make_store, reuse, run_of, serve, tokens
from hypothesis import given
from hypothesis import strategies as st

from kvgrove_daemon.cache.debug import check
from kvgrove_daemon.cache.eviction import POLICIES, CostAware, Group
from kvgrove_daemon.cache.eviction.departed import Departed

G = Group("g")


def key(number: int) -> bytes:
    return number.to_bytes(8, "little") + bytes(24)


def evict(policy: CostAware, count: int) -> list[int]:
    taken = []
    for block in policy.victims(lambda _block: True):
        policy.removed(block, -1, G, key(block))
        taken.append(block)
        if len(taken) == count:
            break
    return taken


def admit(policy: CostAware, block: int) -> None:
    policy.admitted([block], [key(block)])
    policy.offer(block, G)


def test_cost_aware_is_an_lru_while_nothing_was_learned() -> None:
    policy = CostAware(16)
    for block in range(4):
        admit(policy, block)
    policy.touch(1)
    assert policy.stay == 0
    assert evict(policy, 4) == [0, 2, 3, 1]


def test_cost_aware_lets_a_reused_block_outstay_newer_ones_when_reuse_takes_longer_than_residence() -> None:
    policy = CostAware(16)
    admit(policy, 0)
    policy.touch(0)
    policy.patience, policy.residence = 40.0, 20.0
    admit(policy, 1)
    policy.offer(0, G)
    policy.touch(0)
    for block in range(2, 6):
        admit(policy, block)
    assert policy.stay > 0
    assert evict(policy, 6) == [1, 2, 3, 4, 5, 0]


def test_cost_aware_grants_nothing_where_blocks_stay_longer_than_their_next_use_takes() -> None:
    policy = CostAware(16)
    policy.patience, policy.residence = 10.0, 100.0
    admit(policy, 0)
    policy.touch(0)
    admit(policy, 1)
    assert evict(policy, 2) == [0, 1]


def test_cost_aware_bounds_the_stay_by_the_residence() -> None:
    policy = CostAware(16)
    policy.patience, policy.residence = 1e9, 50.0
    assert policy.stay == 100


def test_cost_aware_knows_a_block_that_comes_back() -> None:
    policy = CostAware(16)
    for block in range(3):
        admit(policy, block)
    assert evict(policy, 1) == [0]
    before = policy.patience
    for block in range(3, 13):
        admit(policy, block)
    policy.admitted([13], [key(0)])
    assert policy.patience > before
    assert policy._reused[13]
    assert not policy._reused[12]


def test_what_was_dropped_on_purpose_is_not_known_again() -> None:
    policy = CostAware(16)
    admit(policy, 0)
    policy.removed(0, -1, G)
    policy.admitted([1], [key(0)])
    assert not policy._reused[1]


def test_i11_only_the_last_departures_are_remembered_and_each_is_told_once() -> None:
    departed = Departed(5)
    for number in range(1, 9):  # eight places: none of these takes another's
        departed.note(key(number), number)
    assert [departed.take(key(number)) for number in range(1, 9)] == [0, 0, 0, 4, 5, 6, 7, 8]
    assert not any(departed.take(key(number)) for number in range(1, 9))


def test_s3fifo_keeps_what_was_used_on_probation_and_drops_what_was_not() -> None:
    store = make_store(10, policy="s3fifo")
    for name in range(5):
        serve(store, chain_of(store, run_of(name * 100, 4)))
    reused = chain_of(store, run_of(0, 5))
    assert reuse(store, reused) == 4
    for name in range(5, 13):
        serve(store, chain_of(store, run_of(name * 100, 4)))
    assert reuse(store, reused) == 4
    assert reuse(store, chain_of(store, run_of(100, 5))) == 0


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_conversation_that_is_read_never_gives_way(policy: str) -> None:
    store = make_store(12, policy=policy)
    serve(store, chain_of(store, run_of(0, 16)))
    with store.match(chain_of(store, run_of(0, 17))) as held:
        for name in range(1, 9):
            serve(store, chain_of(store, run_of(name * 100, 20)))
        assert held.blocks == 4
        check(store)
    assert reuse(store, chain_of(store, run_of(0, 17))) in (0, 4, 8, 12, 16)


@given(
    policy=st.sampled_from(sorted(POLICIES)),
    requests=st.lists(
        st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=6), st.booleans(), st.sampled_from("ab")),
        max_size=30,
    ),
)
def test_i6_every_policy_evicts_leaves_first_and_all_of_them_when_asked(
    policy: str, requests: list[tuple[list[int], bool, str]]
) -> None:
    store = make_store(9, policy=policy)
    for values, cancelled, namespace in requests:
        prompt = tokens(value for value in values for _ in range(4))
        chain = chain_of(store, prompt, root=namespace.encode() * 32, namespace=namespace)
        if cancelled:
            begin(store, chain).cancel()
        else:
            serve(store, chain)
        check(store)  # every parent is resident, every evictable leaf known, all slots accounted for
    ready = store.stats().ready
    assert store.evict_to(9, limit=9) == ready
    check(store)
    assert store.stats().free == 9
