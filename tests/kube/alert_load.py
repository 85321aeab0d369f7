"""Callers of a fleet: each asks its namespace at a steady pace, and can be told to ask something else.

Texts are made of a few words by seed, so that the same conversation is the same prompt each time it comes round.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import httpx

Body = dict[str, Any]
Bodies = Callable[[int], Body]
"""Number of the request -> what differs of its body."""

_WORDS = (
    *("grove", "gardener", "tenant", "document", "node", "policy", "prompt", "answer", "remembers", "shares", "keeps"),
    *("explains", "forgets", "warms", "measures", "quota", "refund", "manual", "version", "prefix", "cache"),
)
SYSTEM = "The gardener keeps every document of the grove and explains the old version. No tenant reads the cache. " * 2


def text(seed: str, words: int) -> str:
    """Of this seed, always the same; about one token a word."""
    chosen = random.Random(seed)
    return " ".join(chosen.choice(_WORDS) for _ in range(words))


def said(user: str, system: str = SYSTEM) -> Body:
    return {"messages": [{"role": "system", "content": system}, {"role": "user", "content": user}]}


def conversations(name: str, count: int, words: int) -> Bodies:
    """``count`` of them behind one system prompt, in turn."""
    return lambda n: said(text(f"{name} {n % count}", words))


def at_a_clock(bodies: Bodies) -> Bodies:
    """The same, by an application that tells the model the time first."""

    def body(n: int) -> Body:
        changed = bodies(n)
        system, *others = changed["messages"]
        now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
        return {"messages": [system | {"content": f"It is {now}. {system['content']}"}, *others]}

    return body


def unique(name: str, words: int) -> Bodies:
    """No prompt comes twice, and no two begin alike."""
    return lambda n: {"messages": [{"role": "user", "content": text(f"{name} {n}", words)}]}


@dataclass
class Caller:
    """``bodies`` and ``pace`` may be replaced while it runs."""

    namespace: str
    bodies: Bodies
    pace: float
    """Requests a second; 0: silent."""
    secret: str
    """API key."""
    expected: set[int] = field(default_factory=lambda: {200})
    """Statuses that it may get."""
    answers: Counter[int] = field(default_factory=Counter)
    """Status -> how often."""
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def ask(self, client: httpx.Client) -> None:
        number = next(self._numbers)
        body = {"model": self.namespace, "max_tokens": 4, "temperature": 0, **self.bodies(number)}
        headers = {"Authorization": f"Bearer {self.secret}"}
        answer = client.post("/v1/chat/completions", json=body, headers=headers)
        self.answers[answer.status_code] += 1

    def run(self, address: str, stop: threading.Event) -> None:
        with httpx.Client(base_url=address, timeout=60) as client:
            due = time.monotonic()
            while not stop.wait(max(0.0, due - time.monotonic())):
                if self.pace:
                    self.ask(client)
                # After a stall it goes on at its pace and does not catch up.
                due = max(due + (1 / self.pace if self.pace else 0.1), time.monotonic())


@contextmanager
def asking(address: str, callers: Mapping[str, Caller]) -> Iterator[None]:
    """All of them at once, each in a thread of its own."""
    stop = threading.Event()
    with ExitStack() as stack:
        for caller in callers.values():
            thread = threading.Thread(target=caller.run, args=(address, stop), daemon=True)
            thread.start()
            stack.callback(thread.join)
        stack.callback(stop.set)
        yield
