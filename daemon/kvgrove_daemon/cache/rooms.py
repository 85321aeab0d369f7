"""How much of a pool each namespace may fill, is promised, and for how long.

Role: the settings of namespaces, and what follows from them and from what is held. Invariants: pressure of others never
takes a namespace below its floor (ISO-16); beyond a ceiling or a share it is the one who is over it that gives way.
A namespace without settings has no floor, and the pool for its ceiling.
Must not know: how blocks are found or ordered, units other than blocks and seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kvgrove_daemon.cache.contributors import Group
from kvgrove_daemon.cache.eviction.policy import Wanted


@dataclass(frozen=True, slots=True)
class NamespaceRoom:
    """Settings of one namespace in one pool. Raises ValueError for what no check of quotas lets through."""

    floor: int = 0
    """Blocks that others' pressure leaves to it."""
    ceiling: int | None = None
    """Most blocks; beyond, it gives up its own oldest. None: no limit but the pool."""
    tenant_share: int = 100
    """Percent of its room that one tenant's private blocks may fill; beyond, the tenant gives up its own oldest."""
    ttl_s: float | None = None
    """Seconds that a block may be reused; None: for ever."""
    sliding: bool = True
    """Whether they count from the last use, or from when it was computed."""
    policy: str | None = None
    """A name in `eviction.POLICIES`; None: the pool's own."""
    high_watermark: int = 100
    """Percent of its room at which relief begins."""
    low_watermark: int = 100
    """Percent of its room at which relief ends."""
    max_branches: int | None = None
    """Most children of one block for each contributor; beyond, their own coldest subtree there gives way."""

    def __post_init__(self) -> None:
        if self.floor < 0 or (self.ceiling is not None and self.floor > self.ceiling):
            raise ValueError(f"floor must be within 0..ceiling, not {self.floor} of {self.ceiling}")
        if not 0 < self.tenant_share <= 100:
            raise ValueError(f"tenant_share must be within 1..100, not {self.tenant_share}")
        if not 0 <= self.low_watermark <= self.high_watermark <= 100:
            raise ValueError(
                f"watermarks must be 0 <= low <= high <= 100, not {self.low_watermark} and {self.high_watermark}"
            )
        if self.max_branches is not None and self.max_branches < 1:
            raise ValueError(f"max_branches must be at least 1, not {self.max_branches}")


UNLIMITED: Final = NamespaceRoom()


class Rooms:
    """Settings beside the counts that an index keeps. Mutable by `set` only."""

    def __init__(self, slots: int, held: Mapping[str, int], held_by: Mapping[Group, int]) -> None:
        """``held``, ``held_by``: live views of blocks by namespace, and by who is charged for them."""
        self._slots = slots
        self._held = held
        self._held_by = held_by
        self._rooms: dict[str, NamespaceRoom] = {}
        self.floors = False
        """Whether any namespace has one."""

    def of(self, namespace: str) -> NamespaceRoom:
        return self._rooms.get(namespace, UNLIMITED)

    def all(self) -> Mapping[str, NamespaceRoom]:
        return self._rooms

    def set(self, namespace: str, room: NamespaceRoom) -> None:
        if room == UNLIMITED:
            self._rooms.pop(namespace, None)
        else:
            self._rooms[namespace] = room
        self.floors = any(each.floor for each in self._rooms.values())

    def size(self, namespace: str) -> int:
        """Its room in blocks."""
        ceiling = self.of(namespace).ceiling
        return self._slots if ceiling is None else min(ceiling, self._slots)

    def over_ceiling(self, namespace: str, coming: int = 0) -> int:
        """Blocks beyond its ceiling with ``coming`` more; not positive: none."""
        ceiling = self.of(namespace).ceiling
        return -1 if ceiling is None else self._held.get(namespace, 0) + coming - ceiling

    def over_share(self, group: Group, coming: int = 0) -> int:
        """Blocks of a tenant beyond its share with ``coming`` more; not positive: none."""
        share = self.of(group.namespace).tenant_share
        if share == 100 or not group.tenant:
            return -1
        return self._held_by.get(group, 0) + coming - self.size(group.namespace) * share // 100

    def tenants_of(self, namespace: str) -> list[Group]:
        return [group for group in self._held_by if group.namespace == namespace and group.tenant]

    def above_floor(self, namespace: str) -> int:
        """Blocks that others' pressure may take from it."""
        return max(0, self._held.get(namespace, 0) - self.of(namespace).floor)

    def may_be_taken(self, group: Group) -> bool:
        """Whether others' pressure may take a block of this group now."""
        return self._held.get(group.namespace, 0) > self.of(group.namespace).floor

    def groups_of(self, namespace: str, tenant: bytes | None = None) -> Wanted:
        return lambda group: group.namespace == namespace and tenant in (None, group.tenant)
