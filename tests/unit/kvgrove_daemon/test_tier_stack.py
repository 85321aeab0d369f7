"""Blocks on their way down and back up: always the same bytes, always whole, never another's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tier_rig import TierRig

from kvgrove_daemon.cache.history import RemovalCause
from kvgrove_daemon.cache.subjects import Subject
from kvgrove_daemon.cache.tiers.medium import MediumCorrupt, MediumFailed, MediumFull


@pytest.fixture
def rig() -> Iterator[TierRig]:
    made = TierRig(16, [64])
    yield made
    made.close()


def down(rig: TierRig, values: list[int]) -> None:
    """Serve a chain twice, so that it is copied, and let the pool forget it."""
    chain = rig.chain(values)
    rig.serve(chain)
    rig.serve(chain)
    rig.tend()
    assert len(rig.stack.lower[0].index) == len(values)
    rig.empty_pool()


def test_what_was_reused_is_copied_and_comes_back_equal(rig: TierRig) -> None:
    down(rig, [1, 2, 3])
    assert rig.serve(rig.chain([1, 2, 3, 4])) == {"disk": 3}
    assert rig.serve(rig.chain([1, 2, 3, 4])) == {"pool": 4}


def test_what_was_never_reused_is_not_copied_while_there_is_room(rig: TierRig) -> None:
    rig.serve(rig.chain([1, 2, 3]))
    rig.tend()
    assert rig.stack.writes[0].stats().missed == 0
    assert len(rig.stack.lower[0].index) == 0


def test_under_pressure_everything_is_copied_before_it_goes(rig: TierRig) -> None:
    for start in range(0, 40, 4):
        rig.serve(rig.chain(list(range(start, start + 4))))
        rig.tend()
    assert rig.serve(rig.chain([4, 5, 6, 7])) == {"disk": 4}


def test_what_was_never_reused_is_handed_over_when_the_process_is_to_end(rig: TierRig) -> None:
    for start in (0, 10):
        rig.serve(rig.chain([start, start + 1, start + 2]))
    rig.tend()
    assert len(rig.stack.lower[0].index) == 0
    rig.stack.hand_over()
    assert rig.stack.left == 6
    rig.tend()
    assert rig.stack.left == 0
    rig.empty_pool()
    assert rig.serve(rig.chain([10, 11, 12])) == {"disk": 3}


def test_a_tier_that_cannot_be_written_leaves_nothing_to_wait_for(rig: TierRig) -> None:
    rig.serve(rig.chain([1, 2, 3]))
    rig.stack.hand_over()
    rig.media[0].fail_writes = MediumFailed("worn out")
    rig.tend()
    assert rig.stack.left == 0


def test_con_01_the_source_stays_leased_until_the_writer_has_acknowledged(rig: TierRig) -> None:
    chain = rig.chain([1, 2, 3])
    rig.serve(chain)
    rig.serve(chain)
    rig.stack.tend()
    assert rig.workers.waiting
    rig.empty_pool()
    assert rig.store.ready_blocks(chain) == 3  # pinned, whatever the pressure
    rig.workers.settle()
    rig.empty_pool()
    assert rig.store.ready_blocks(chain) == 0
    assert rig.serve(chain) == {"disk": 3}


def test_con_01_a_block_below_stays_while_it_is_loaded(rig: TierRig) -> None:
    down(rig, [1, 2, 3])
    chain = rig.chain([1, 2, 3])
    build, below = rig.begin(chain)
    assert below is not None
    tier = rig.stack.lower[0]
    assert tier.resident.evict(64, RemovalCause.PRESSURE) == 0
    ended: list[int] = []
    rig.load(build, below, lambda load: ended.append(load.loaded))
    assert tier.drop(RemovalCause.VERSION, Subject(namespace="ns")).held == 3
    rig.tend()
    assert ended == [3]
    assert rig.arena.read_block(build.slots[2]) != bytes(rig.arena.layout.block_bytes)
    rig.finish(build, 3)
    rig.tend()
    assert tier.stats().free == 64  # erased once the reader had gone


def test_con_10_children_of_a_block_that_could_not_be_stored_are_not_stored(rig: TierRig) -> None:
    chain = rig.chain([1, 2, 3])
    rig.serve(chain)
    rig.media[0].fail_writes = MediumFailed("broken")
    rig.serve(chain)
    rig.tend()
    rig.media[0].fail_writes = None
    longer = rig.chain([1, 2, 3, 4, 5])
    rig.serve(longer)
    rig.tend()
    assert len(rig.stack.lower[0].index) == 0
    assert rig.stack.lower[0].stats().suspended == "tier_failed"
    assert rig.stack.writes[0].stats().dropped == {"tier_failed": 3}
    rig.now += 10
    rig.serve(longer)
    rig.tend()
    assert [facts.depth for facts in rig.media[0].written] == [0, 1, 2, 3, 4]  # from the root on
    assert rig.stack.lower[0].stats().suspended == ""
    rig.empty_pool()
    assert rig.serve(longer) == {"disk": 5}


def test_con_05_a_block_that_is_gone_ends_the_reuse_before_it(rig: TierRig) -> None:
    values = list(range(10))
    down(rig, values)
    chain = rig.chain(values)
    rig.media[0].fail_reads[chain.keys[6]] = MediumCorrupt("other bytes")
    assert rig.serve(chain) == {"disk": 6}
    assert rig.stack.lower[0].stats().corrupt == 1
    rig.empty_pool()
    rig.media[0].fail_reads.clear()
    assert rig.serve(chain) == {"disk": 6}  # it and what followed it are not offered again


def test_a_full_medium_suspends_the_tier_and_nothing_else(rig: TierRig) -> None:
    chain = rig.chain([1, 2])
    rig.serve(chain)
    rig.media[0].fail_writes = MediumFull("no space left")
    rig.serve(chain)
    rig.tend()
    assert rig.stack.lower[0].stats().suspended == "tier_full"
    assert rig.serve(chain) == {"pool": 2}
    rig.tend()
    assert rig.stack.lower[0].stats().free == 64


def test_i3_fresh_what_is_dropped_while_it_is_written_is_never_listed(rig: TierRig) -> None:
    chain = rig.chain([1, 2, 3], documents={1: ("handbook",)}, folds={1: b"f" * 32})
    rig.serve(chain)
    rig.serve(chain)
    rig.stack.tend()
    rig.workers.run_one()
    rig.store.drop(cause=RemovalCause.VERSION, namespace="ns", document="handbook")
    rig.stack.drop(RemovalCause.VERSION, Subject(namespace="ns", document="handbook"))
    rig.tend()
    assert len(rig.stack.lower[0].index) == 1  # the block before the document
    assert rig.stack.lower[0].stats().free == 63


def test_i3_fresh_nothing_is_listed_when_the_fence_moved_while_it_was_written(rig: TierRig) -> None:
    chain = rig.chain([1, 2, 3])
    rig.serve(chain)
    rig.serve(chain)
    rig.stack.tend()
    rig.workers.run_one()
    rig.fresh = False
    rig.workers.poll()
    rig.tend()
    assert rig.stack.lower[0].stats().free == 64
    assert rig.stack.writes[0].stats().dropped == {"not_fresh": 3}


def test_abandoning_a_load_keeps_what_is_whole_and_touches_the_slots_no_more(rig: TierRig) -> None:
    down(rig, [1, 2, 3])
    build, below = rig.begin(rig.chain([1, 2, 3]))
    assert below is not None
    load = rig.load(build, below, lambda _: None)
    assert load.abandon() == 0
    before = [rig.arena.read_block(slot) for slot in build.slots]
    rig.workers.settle()
    assert [rig.arena.read_block(slot) for slot in build.slots] == before
    rig.finish(build, 0)
    assert rig.stack.lower[0].resident.leases.active == 0


def test_per_05_what_is_quicker_to_compute_is_not_loaded(rig: TierRig) -> None:
    down(rig, [1, 2, 3])
    build, below = rig.begin(rig.chain([1, 2, 3]), prefill_tokens_per_s=1e9)
    assert below is not None
    assert (below.upto, below.declined) == (0, 3)
    rig.finish(build, 0)


def test_slots_that_could_not_be_erased_are_not_used_again_until_they_could(rig: TierRig) -> None:
    down(rig, [1, 2, 3])
    tier = rig.stack.lower[0]
    rig.media[0].fail_erase = MediumFailed("not obeyed")
    tier.drop(RemovalCause.ERASE, Subject(namespace="ns"))
    rig.tend()
    assert (tier.stats().free, tier.stats().clearing) == (61, 3)
    rig.media[0].fail_erase = None
    rig.now += 100
    rig.tend()
    assert tier.stats().free == 64


def test_three_tiers_hand_down_and_load_straight_to_the_top() -> None:
    rig = TierRig(8, [12, 64])
    chains = [rig.chain(list(range(start, start + 4))) for start in range(0, 40, 4)]
    for chain in chains:
        rig.serve(chain)
        rig.serve(chain)
        rig.tend()
        rig.tend()
    host, disk = rig.stack.lower
    assert len(host.index) <= 12
    assert len(disk.index) > 24
    rig.empty_pool()
    assert rig.serve(chains[0]) == {"disk": 4}
    assert rig.serve(chains[-1]) == {"host": 4}
    rig.close()
