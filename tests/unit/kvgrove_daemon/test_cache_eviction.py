"""The order in which leaves go, the memory of what went, and that both stay bounded (I6, I11)."""

from kvgrove_daemon.cache.eviction import Group, LeafLRU
from kvgrove_daemon.cache.history import Ghosts, RemovalCause
from kvgrove_protocol.reasons import MissReason


def of(group: str) -> Group:
    return Group(group)


def filled(count: int, group: str = "g") -> LeafLRU:
    policy = LeafLRU(64)
    for block in range(count):
        policy.touch(block)
        policy.offer(block, of(group))
    return policy


def take(policy: LeafLRU, count: int, group: str | None = None) -> list[int]:
    taken = []
    for block in policy.victims(lambda _block: True, None if group is None else of(group).__eq__):
        policy.removed(block, -1, of(group or "g"))
        taken.append(block)
        if len(taken) == count:
            break
    return taken


def test_least_recently_used_first() -> None:
    policy = filled(5)
    policy.touch(0)
    policy.touch(2)
    assert take(policy, 9) == [1, 3, 4, 0, 2]
    assert take(policy, 1) == []


def test_a_block_that_may_not_go_is_passed_over_until_it_is_offered_again() -> None:
    policy = filled(3)
    assert list(policy.victims(lambda block: block == 2)) == [2]
    policy.removed(2, -1, of("g"))
    assert take(policy, 9) == []
    policy.offer(1, of("g"))
    assert take(policy, 9) == [1]


def test_a_parent_takes_over_the_last_use_of_its_children() -> None:
    policy = filled(3)
    policy.touch(9)  # used after 9's parent, block 5, which was never a tail
    policy.offer(9, of("g"))
    policy.removed(9, 5, of("g"))
    policy.offer(5, of("g"))
    assert take(policy, 9) == [0, 1, 2, 5]


def test_an_id_that_was_reused_for_another_namespace_is_charged_to_that_one() -> None:
    policy = filled(4, "old")
    policy.removed(0, -1, of("old"))
    policy.touch(0)
    policy.offer(0, of("new"))
    assert take(policy, 9, "old") == [1, 2, 3]
    assert take(policy, 9, "new") == [0]


def test_groups_are_merged_by_age() -> None:
    policy = LeafLRU(8)
    for block in range(6):
        policy.touch(block)
        policy.offer(block, "even" if block % 2 == 0 else "odd")
    taken = []
    for block in policy.victims(lambda _block: True):
        policy.removed(block, -1, "even" if block % 2 == 0 else "odd")
        taken.append(block)
    assert taken == [0, 1, 2, 3, 4, 5]


def test_i11_blocks_that_go_by_other_ways_leave_no_growing_queue() -> None:
    policy = filled(8)
    for _ in range(2000):
        policy.removed(3, -1, of("g"))
        policy.touch(3)
        policy.offer(3, of("g"))
    assert sum(len(queue) for queue in policy._leaves._queues.values()) <= 2 * 8 + 65
    assert take(policy, 9) == [0, 1, 2, 4, 5, 6, 7, 3]


def test_i11_the_memory_of_what_went_is_bounded_and_ends_when_it_is_stored_again() -> None:
    ghosts = Ghosts(3)
    keys = [bytes([n]) * 32 for n in range(5)]
    ghosts.record(keys, RemovalCause.PRESSURE, [of("g")] * 5)
    assert (len(ghosts), ghosts.reason(keys[0]), ghosts.reason(keys[4])) == (3, None, MissReason.EVICTED)
    ghosts.record(keys[:1], RemovalCause.TTL, [of("h")])
    assert ghosts.reason(keys[0]) is MissReason.EXPIRED
    ghosts.discard(keys)
    assert len(ghosts) == 0


def test_what_gave_way_to_a_flood_is_remembered_for_all_that_goes_of_the_flood_itself() -> None:
    ghosts = Ghosts(100)
    mine = [b"m%031d" % n for n in range(50)]
    ghosts.record(mine, RemovalCause.PRESSURE, [Group("g", b"a")] * 50)
    for n in range(1000):
        ghosts.record([b"f%031d" % n], RemovalCause.PRESSURE, [Group("g", b"b")])
    assert [ghosts.reason(key) for key in mine] == [MissReason.EVICTED] * 50
    assert len(ghosts) == 100
    others = [b"o%031d" % n for n in range(34)]
    ghosts.record(others, RemovalCause.PRESSURE, [of("h")] * 34)
    kept = [sum(ghosts.reason(key) is not None for key in keys) for keys in (mine, others)]
    assert min(kept) >= 33  # of three, none forgets before it has more than a third
    assert len(ghosts) == 100
    ghosts.clear()
    assert len(ghosts) == 0


def test_an_erase_and_a_new_version_leave_no_trace() -> None:
    ghosts = Ghosts(8)
    for cause in (RemovalCause.ERASE, RemovalCause.VERSION, RemovalCause.CLEAR):
        ghosts.record([b"k" * 32], cause, [of("g")])
    assert len(ghosts) == 0
