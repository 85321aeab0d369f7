"""The policy of a pool whose namespaces choose their own.

Role: one front over one policy object for each kind in use. Invariants: a block is known to exactly one of them, that
of its namespace; with one kind in use the front decides as that policy alone would; between kinds the block that is due
first gives way, since all share one logical clock.
Must not know: floors and shares (the caller says which groups are wanted).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from kvgrove_daemon.cache.contributors import Group
from kvgrove_daemon.cache.eviction import POLICIES
from kvgrove_daemon.cache.eviction.policy import Evictable, EvictionPolicy, Parts, Wanted


class PolicyByNamespace:
    """An `EvictionPolicy`. ``group_of`` answers for any block that is held."""

    def __init__(self, capacity: int, default: EvictionPolicy, group_of: Callable[[int], Group]) -> None:
        self.ticks = default.ticks
        self._capacity = capacity
        self._default = default
        self._group_of = group_of
        self._kinds: dict[str, EvictionPolicy] = {
            name: default for name, kind in POLICIES.items() if isinstance(kind, type) and isinstance(default, kind)
        }
        self._chosen: dict[str, EvictionPolicy] = {}

    def of(self, namespace: str) -> EvictionPolicy:
        """The policy that orders this namespace's blocks."""
        return self._chosen.get(namespace, self._default)

    def choose(self, namespace: str, kind: str | None, evictable: Evictable, held: Sequence[int]) -> None:
        """Order the namespace's blocks by ``kind`` (None: the default) from now on.

        ``held``: all of its blocks. Leaves keep their order; what the former policy learned of them is given up.
        Raises KeyError for a kind that is not in `POLICIES`.
        """
        former = self.of(namespace)
        chosen = self._default if kind is None else self._kind(kind)
        if chosen is self._default:
            self._chosen.pop(namespace, None)
        else:
            self._chosen[namespace] = chosen
        if chosen is former:
            return
        leaves = list(former.victims(evictable, lambda group: group.namespace == namespace))
        for block in held:
            former.removed(block, -1, self._group_of(block))
        for block in leaves:
            chosen.touch(block)
            chosen.offer(block, self._group_of(block))

    def _kind(self, kind: str) -> EvictionPolicy:
        if kind not in self._kinds:
            self._kinds[kind] = POLICIES[kind](self._capacity, self.ticks)
        return self._kinds[kind]

    def _in_use(self) -> list[EvictionPolicy]:
        return list({id(policy): policy for policy in (self._default, *self._chosen.values())}.values())

    # -- as one policy -------------------------------------------------------------------------------------------------

    def touch(self, tail: int, chain: Parts = ()) -> None:
        self.of(self._group_of(tail).namespace).touch(tail, chain)

    def admitted(self, blocks: Sequence[int], keys: Sequence[bytes]) -> None:
        self.of(self._group_of(blocks[0]).namespace).admitted(blocks, keys)

    def offer(self, block: int, group: Group) -> None:
        self.of(group.namespace).offer(block, group)

    def removed(self, block: int, parent: int, group: Group, key: bytes | None = None) -> None:
        self.of(group.namespace).removed(block, parent, group, key)

    def next_due(self, evictable: Evictable, wanted: Wanted | None = None) -> int | None:
        dues = [policy.next_due(evictable, wanted) for policy in self._in_use()]
        return min((due for due in dues if due is not None), default=None)

    def victims(self, evictable: Evictable, wanted: Wanted | None = None) -> Iterator[int]:
        policies = self._in_use()
        if len(policies) == 1:
            yield from policies[0].victims(evictable, wanted)
            return
        while True:
            dues = [policy.next_due(evictable, wanted) for policy in policies]
            due = [(at, n) for n, at in enumerate(dues) if at is not None]
            block = next(policies[min(due)[1]].victims(evictable, wanted), None) if due else None
            if block is None:
                return
            yield block

    def forget(self) -> None:
        for policy in {*self._kinds.values(), self._default}:
            policy.forget()

    def knows(self, block: int, group: Group) -> bool:
        return self.of(group.namespace).knows(block, group)
