"""Load counts from the moment a request is sent, by the real router and links' bookkeeping (ROU-02)."""

from __future__ import annotations

import random

from kvgrove_gateway.router.decide import Backlog
from kvgrove_gateway.router.index import BlockIndex
from kvgrove_gateway.router.placement import NodeView, Router

BLOCK, NODES, PROMPT = 32, 4, 32_000
RATE = 2_000.0
"""Prefill tokens per second: one such prompt takes 16 s, so within the first second nothing is answered."""


class Fleet:
    """Four nodes that answer each prompt with one token, at the end of its prefill."""

    def __init__(self) -> None:
        self.now = 0.0
        index = BlockIndex(100_000)
        self.router = Router(index, clock=lambda: self.now)
        self.slots = {f"n{at}": index.open_slot() for at in range(NODES)}
        self.backlogs = {name: Backlog() for name in self.slots}
        self.sent = 0

    def send(self, keys: list[bytes]) -> str:
        views = [NodeView(name, self.slots[name], backlog.tokens, 0, RATE) for name, backlog in self.backlogs.items()]
        choice = self.router.choose(views, PROMPT, keys, BLOCK)
        self.router.dispatched(choice)
        self.backlogs[choice.decision.node].dispatched(str(self.sent), choice.uncached_tokens)
        self.sent += 1
        return choice.decision.node


def keys(seed: int) -> list[bytes]:
    source = random.Random(seed)
    return [source.randbytes(32) for _ in range(PROMPT // BLOCK)]


def test_rou_02_long_prompts_with_short_answers_are_spread_from_the_first_second() -> None:
    fleet = Fleet()
    chosen = []
    for number in range(4 * NODES):
        chosen.append(fleet.send(keys(number)))
        fleet.now += 1 / (4 * NODES)
    for first in range(0, len(chosen), NODES):  # not only in the end: each four of them go to four nodes
        assert sorted(chosen[first : first + NODES]) == sorted(fleet.backlogs)


def test_rou_02_what_one_node_has_answered_makes_room_there_and_nowhere_else() -> None:
    fleet = Fleet()
    chosen = [fleet.send(keys(number)) for number in range(NODES)]
    fleet.now += PROMPT / RATE
    fleet.backlogs[chosen[2]].prefilled("2")
    assert fleet.send(keys(99)) == chosen[2]
