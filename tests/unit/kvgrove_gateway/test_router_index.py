"""The residency index: matches by bisection, slots by boot, bounds that are counted."""

import random

from kvgrove_gateway.router.index import BUILDING, TIER_WEIGHTS, BlockIndex, Match
from kvgrove_protocol.events import DEVICE, DISK, HOST


def keys(count: int, seed: int = 0) -> list[bytes]:
    source = random.Random(seed)
    return [source.randbytes(32) for _ in range(count)]


def joined(chain: list[bytes]) -> bytes:
    return b"".join(chain)


def match(index: BlockIndex, chain: list[bytes], **slots: int) -> dict[str, int]:
    found = index.longest_matches(slots, chain)
    assert found is not None
    return found


def test_longest_match_equals_a_walk_for_every_length() -> None:
    chain = keys(37)
    for length in range(len(chain) + 1):
        index = BlockIndex(1000)
        slot = index.open_slot()
        index.store(slot, joined(chain[:length]), HOST)
        assert match(index, chain, node=slot) == {"node": length}


def test_rou_12_nodes_are_told_apart_and_middles_do_not_count() -> None:
    index, chain = BlockIndex(1000), keys(4)
    left, right = index.open_slot(), index.open_slot()
    index.store(left, joined(chain[:2]), HOST)
    index.store(right, joined(chain[2:]), HOST)  # held, but not from the start (ROU-12)
    found = match(index, chain, left=left, right=right)
    assert found["left"] == 2
    assert index.holds(right, chain[3])
    assert not index.holds(left, chain[3])


def test_a_block_is_held_as_long_as_one_tier_has_it() -> None:
    index, chain = BlockIndex(1000), keys(3)
    slot = index.open_slot()
    index.store(slot, joined(chain), DEVICE)
    index.store(slot, joined(chain), DISK)
    index.remove(slot, joined(chain), DEVICE)
    assert match(index, chain, node=slot) == {"node": 3}
    index.remove(slot, joined(chain[2:]), DISK)
    assert match(index, chain, node=slot) == {"node": 2}
    index.remove(slot, joined(chain[:2]), DISK)
    assert len(index) == 0


def test_removing_what_is_not_there_changes_nothing() -> None:
    index, chain = BlockIndex(1000), keys(2)
    one, other = index.open_slot(), index.open_slot()
    index.store(one, joined(chain), HOST)
    index.remove(other, joined(chain), HOST)
    index.remove(one, joined(keys(5, seed=1)), HOST)
    assert match(index, chain, one=one, other=other) == {"one": 2, "other": 0}


def test_a_closed_slot_is_forgotten_at_once_and_swept_before_it_is_used_again() -> None:
    """ROU-06, ROU-08: what an earlier boot held is never taken for the new one's."""
    index, chain = BlockIndex(1000), keys(50)
    old, other = index.open_slot(), index.open_slot()
    index.store(old, joined(chain), HOST)
    index.store(other, joined(chain[:10]), HOST)
    index.close_slot(old)
    assert match(index, chain, node=old) == {"node": 0}
    new = index.open_slot()
    assert new != old
    assert match(index, chain, node=new) == {"node": 0}
    while index.sweep():
        pass
    assert len(index) == 10
    assert index.open_slot() == old
    assert match(index, chain, node=old, other=other) == {"node": 0, "other": 10}


def test_a_full_index_gives_up_the_oldest_from_their_ends_and_counts() -> None:
    index = BlockIndex(40_000)
    slot = index.open_slot()
    hot, cold, fresh = keys(8000, seed=1), keys(30_000, seed=2), keys(15_000, seed=3)
    for chain in (hot, cold):
        index.store(slot, joined(chain), HOST)
    index.used(hot)
    index.store(slot, joined(fresh), HOST)
    assert len(index) <= 40_000
    assert index.dropped == 53_000 - len(index)
    assert match(index, fresh, node=slot) == {"node": 15_000}
    assert match(index, hot, node=slot) == {"node": 8000}  # was used: others went first
    held = [index.holds(slot, key) for key in cold]
    assert sum(held[:10_000]) > 9 * sum(held[-10_000:])  # children before parents


def test_known_keys_need_no_room() -> None:
    index, chain = BlockIndex(300), keys(300)
    index.store(index.open_slot(), joined(chain), HOST)
    index.store(index.open_slot(), joined(chain), HOST)
    assert index.dropped == 0


def test_mem_09_the_index_returns_to_its_base_size_after_random_life() -> None:
    source, index = random.Random(7), BlockIndex(100_000)
    chain = keys(400, seed=3)
    slots = [index.open_slot() for _ in range(5)]
    held: dict[int, set[bytes]] = {slot: set() for slot in slots}
    for _ in range(2000):
        slot, some = source.choice(slots), source.sample(chain, 5)
        if source.random() < 0.6:
            index.store(slot, joined(some), HOST)
            held[slot].update(some)
        else:
            index.remove(slot, joined(some), HOST)
            held[slot].difference_update(some)
        index.sweep()
    assert len(index) == len(set().union(*held.values()))
    assert all(index.holds(slot, key) == (key in held[slot]) for slot in slots for key in chain)
    for slot in slots:
        index.close_slot(slot)
    while index.sweep():
        pass
    assert len(index) == 0


def test_a_late_look_up_gives_up() -> None:
    index, chain = BlockIndex(10), keys(3)
    assert index.longest_matches({"a": index.open_slot()}, chain, late=lambda: True) is None


def test_iso_02_keys_that_collide_in_the_index_cost_a_worse_node_and_no_more() -> None:
    index = BlockIndex(10)
    slot = index.open_slot()
    one, other = b"8 bytes." + b"a" * 24, b"8 bytes." + b"b" * 24
    index.store(slot, one, HOST)
    assert index.holds(slot, other)  # believed, and disproved by the node, which computes keys itself
    index.remove(slot, other, HOST)
    assert len(index) == 0


def test_copies_are_counted_where_a_node_reports_each() -> None:
    index, chain = BlockIndex(1000), keys(1)
    slot = index.open_slot()
    for _ in range(3):
        index.store(slot, joined(chain), DEVICE, counted=True)
    for left in (True, True, False):
        index.remove(slot, joined(chain), DEVICE)
        assert index.holds(slot, chain[0]) is left
    index.remove(slot, joined(chain), DEVICE)
    assert len(index) == 0


def test_slower_tiers_and_builds_are_worth_less_than_what_is_at_hand() -> None:
    index, chain = BlockIndex(1000), keys(10)
    slot = index.open_slot()
    index.store(slot, joined(chain[:4]), DEVICE)
    index.store(slot, joined(chain[2:7]), DISK)
    index.store(slot, joined(chain[7:9]), BUILDING)
    found = index.weighed_matches({"n": slot}, chain)
    assert found == {"n": Match(7, 2, 4 + 3 * TIER_WEIGHTS[DISK] + 2 * TIER_WEIGHTS[BUILDING])}
    assert not index.holds(slot, chain[8])
    assert match(index, chain, n=slot) == {"n": 7}


def test_per_03_a_long_prompt_on_many_nodes_takes_few_look_ups() -> None:
    """3,750 blocks on 96 nodes: looked up once for each different position, not for each node and block."""
    index, chain = BlockIndex(10_000), Reading(keys(3750))
    slots = {f"n{at}": index.open_slot() for at in range(96)}
    for slot in slots.values():
        index.store(slot, joined(chain[:2000]), HOST)
    assert set(match(index, chain, **slots).values()) == {2000}
    assert chain.reads <= 13


class Reading(list[bytes]):
    """Counts the single keys that are read."""

    reads = 0

    def __getitem__(self, at):  # type: ignore[no-untyped-def]
        self.reads += isinstance(at, int)
        return super().__getitem__(at)
