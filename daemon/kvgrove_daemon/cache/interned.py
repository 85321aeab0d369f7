"""Values as small integers, kept for as long as some block uses them.

Role: a column of the index holds four bytes for a root, a fold or a tag instead of a reference to a long value.
Invariants: equal values have equal ids; an id is valid while its count is positive; the table is bounded by its users.
Must not know: what the values mean.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

Value = TypeVar("Value", bound=Hashable)

NOTHING = 0
"""The id that stands for "no value": never handed out."""


@dataclass(slots=True)
class _Entry(Generic[Value]):
    value: Value
    labels: tuple[str, ...]
    uses: int


class Interned(Generic[Value]):
    """Counted ids from 1. Mutable, single-threaded."""

    def __init__(self) -> None:
        self._ids: dict[Value, int] = {}
        self._entries: dict[int, _Entry[Value]] = {}
        self._next = 1
        self._vacant: list[int] = []

    def __len__(self) -> int:
        return len(self._ids)

    def find(self, value: Value) -> int | None:
        """The id of ``value``, or None while nobody uses it."""
        return self._ids.get(value)

    def hold(self, value: Value, uses: int, labels: tuple[str, ...] = ()) -> int:
        """Count ``uses`` more users and answer the id. ``labels`` are kept from the first of them."""
        known = self._ids.get(value)
        if known is not None:
            self._entries[known].uses += uses
            return known
        if self._vacant:
            new = self._vacant.pop()
        else:
            new = self._next
            self._next += 1
        self._ids[value] = new
        self._entries[new] = _Entry(value, labels, uses)
        return new

    def release(self, known: int, uses: int = 1) -> None:
        """So many users less; the last one takes the entry along. Raises KeyError for an id that nobody uses."""
        entry = self._entries[known]
        entry.uses -= uses
        if entry.uses == 0:
            del self._entries[known], self._ids[entry.value]
            self._vacant.append(known)

    def value(self, known: int) -> Value:
        return self._entries[known].value

    def labels(self, known: int) -> tuple[str, ...]:
        return self._entries[known].labels

    def uses(self, known: int) -> int:
        return self._entries[known].uses

    def items(self) -> Iterator[tuple[int, Value, tuple[str, ...]]]:
        """``(id, value, labels)`` of everything in use."""
        return ((known, entry.value, entry.labels) for known, entry in self._entries.items())
