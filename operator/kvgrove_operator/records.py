"""The CacheNodes of the fleet: composes them from the ledger and has them written.

One write of a member at a time, composed once it is its turn: so a later write never says less than an earlier one, and
what nobody waits for need not hold up the fleet.
"""

import asyncio
from collections.abc import Iterable, Mapping
from datetime import datetime
from weakref import WeakValueDictionary

from kvgrove_crds.cache_node import CacheNode, CacheNodeStatus
from kvgrove_operator import cache_nodes
from kvgrove_operator.cache_nodes import Fleetwide
from kvgrove_operator.members import MemberLedger, MemberView
from kvgrove_operator.node_book import NodeBook
from kvgrove_operator.plan_state import PlanState
from kvgrove_protocol.control import DAEMON, GATEWAY, ModelPlan


class Records:
    """``nodes``: as earlier leaders left them."""

    def __init__(self, book: NodeBook, nodes: Iterable[CacheNode]) -> None:
        self._book = book
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._roles = {node.name: DAEMON if node.spec.member == "Daemon" else GATEWAY for node in nodes}

    def met(self, member: str, role: str) -> None:
        """It said Hello."""
        self._roles[member] = role

    def members(self, ledger: MemberLedger) -> dict[str, str]:
        """Every member that is on record or connected -> its role."""
        connected = [view.hello.member for view in ledger.members]
        names = {*self._book.members, *connected, *ledger.recorded()}
        return {name: self._roles.get(name, DAEMON) for name in sorted(names)}

    async def write(self, member: str, ledger: MemberLedger, around: Fleetwide) -> None:
        """Durable on return."""
        async with self._turn(member):
            status = self._compose(member, ledger.view(member), ledger, around)
            await self._book.write(member, self._roles.get(member, DAEMON), status)

    async def refresh(self, member: str, ledger: MemberLedger, around: Fleetwide) -> None:
        """The same, if that tells anybody anything."""
        async with self._turn(member):
            view, before = ledger.view(member), self._book.status(member)
            if view is None and before is None:
                return
            status = self._compose(member, view, ledger, around)
            if cache_nodes.tells_more(status, before):
                await self._book.write(member, self._roles.get(member, DAEMON), status)

    async def forget(self, member: str, ledger: MemberLedger) -> bool:
        """Delete the object of a member that is not there and holds nothing; whether that was so."""
        async with self._turn(member):
            if ledger.records(member) or ledger.view(member) is not None:
                return False
            await self._book.remove(member)
            self._roles.pop(member, None)
        return True

    def _turn(self, member: str) -> asyncio.Lock:
        """Kept for as long as somebody holds it or waits for it."""
        return self._turns.setdefault(member, asyncio.Lock())

    def _compose(
        self, member: str, view: MemberView | None, ledger: MemberLedger, around: Fleetwide
    ) -> CacheNodeStatus:
        return cache_nodes.compose(view, ledger.records(member), self._book.status(member), around)


def fleetwide(state: PlanState, models: Iterable[ModelPlan], ledger: MemberLedger, now: datetime) -> Fleetwide:
    """What all CacheNodes of a moment share."""
    held: Mapping[str, str] = {uid: each.name for uid, each in (state.removed | state.namespaces).items()}
    return Fleetwide(names=held, models={each.name: each for each in models}, revision=ledger.revision, now=now)
