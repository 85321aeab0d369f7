"""Looks at some requests of each namespace for what keeps them from being reused, and counts it by kind.

At most one request a second of each namespace: it is to tell operators of applications, not to judge every request.
Keeps no text (see `kvgrove_prompt.linter.sketch`). Thread-safe: called from the assembly threads.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from kvgrove_prompt.linter.lint import lint
from kvgrove_prompt.linter.sketch import StableSketch
from kvgrove_prompt.linter.stable_zone import zones_of_messages
from kvgrove_prompt.roles import Message

EVERY_S = 1.0


class TrafficLinter:
    """``found``: told of a namespace's UID and of the kinds found in one request."""

    def __init__(self, key: bytes, *, found: Callable[[str, Iterable[str]], None], clock: Callable[[], float]) -> None:
        self._sketch = StableSketch(key)
        self._found = found
        self._clock = clock
        self._lock = threading.Lock()
        self._next: dict[str, float] = {}

    def look(self, namespace: str, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> None:
        """Look at a request, unless another one of ``namespace`` was looked at just now."""
        now = self._clock()
        with self._lock:
            if now < self._next.get(namespace, now):
                return
            self._next[namespace] = now + EVERY_S
        zones = zones_of_messages(messages, tools)
        found = lint(zones)
        with self._lock:
            found += self._sketch.observe(namespace, zones)
        if found:
            self._found(namespace, sorted({each.kind.value for each in found}))

    def keep(self, namespaces: Iterable[str]) -> None:
        """Forget all others."""
        with self._lock:
            for gone in self._next.keys() - set(namespaces):
                del self._next[gone]
                self._sketch.forget(gone)

    def clear(self) -> int:
        """Forget everything; answers how many texts' shapes there were."""
        with self._lock:
            return self._sketch.clear()
