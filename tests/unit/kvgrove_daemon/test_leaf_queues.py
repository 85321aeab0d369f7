"""Queues of leaves by group: whoever is offered on the way comes up in turn, in whatever group."""

from __future__ import annotations

from array import array

from kvgrove_daemon.cache.contributors import Group
from kvgrove_daemon.cache.eviction.queues import LeafQueues

DECLARED, ACME, GLOBEX = Group("ns"), Group("ns", b"a" * 16), Group("ns", b"g" * 16)


def drain(queues: LeafQueues, parents: dict[int, tuple[int, Group]]) -> list[int]:
    """Take every victim; one that is in ``parents`` makes its parent a leaf."""
    taken = []
    for block in queues.victims(lambda _: True, None):
        taken.append(block)
        if block in parents:
            queues.add(*parents[block])
    return taken


def test_a_parent_in_a_group_that_had_no_leaf_comes_up() -> None:
    queues = LeafQueues(array("q", [1, 2, 3]))
    queues.add(1, ACME)
    assert drain(queues, {1: (0, DECLARED)}) == [1, 0]
    assert queues.count == 0


def test_a_parent_that_is_due_before_the_head_of_another_group_takes_nothing_from_it() -> None:
    queues = LeafQueues(array("q", [4, 2, 9, 7]))
    queues.add(1, ACME)
    queues.add(2, DECLARED)
    queues.add(3, GLOBEX)
    assert drain(queues, {1: (0, DECLARED)}) == [1, 0, 3, 2]
    assert queues.count == 0
