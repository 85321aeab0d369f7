"""Leads, or waits to: carries out what `election` decides on the Lease object of the API server.

Being out of reach of the API server ends no leadership by itself: the time up to which it may be believed is not moved
on, the ledger of members stops granting there, and if nobody took the Lease meanwhile it goes on. Seeing another
holder ends it for good.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from kvgrove_link.clock import boottime
from kvgrove_operator import paths
from kvgrove_operator.election import Election, Verdict, term_of
from kvgrove_operator.kube import Conflict, Forbidden, Kube, Object, Unavailable
from kvgrove_operator.settings import LeaderTimings
from kvgrove_protocol.errors import Terminal

log = logging.getLogger("kvgrove_operator")

_AWAY = (Unavailable, Forbidden)
"""An API server that has just started knows no roles for a moment: not to be allowed is no end, and may pass."""

Told = Callable[[float], Awaitable[None]]
"""Is told the moment (CLOCK_BOOTTIME) until which this process leads."""


class LeadershipLost(Terminal):
    """Another process leads."""

    code = "not_leading"


class Leadership:
    """The Lease ``name`` of Kubernetes namespace ``namespace``, seen by the candidate ``identity``."""

    def __init__(self, kube: Kube, namespace: str, name: str, identity: str, timings: LeaderTimings) -> None:
        self._kube, self._timings = kube, timings
        self._collection, self._name, self._namespace = paths.leases(namespace), name, namespace
        self._election = Election(identity, timings.duration)
        self._lease: Object | None = None
        self.until = float("-inf")
        """Leads until then (CLOCK_BOOTTIME)."""
        self.tried_at = boottime()
        """When it last went to look whether it may lead (CLOCK_BOOTTIME), whatever came of it."""
        self._stands_by_until = float("-inf")

    def ready(self, now: float) -> bool:
        """Leads, or stands by: sees that another does, and would take over. ``now``: CLOCK_BOOTTIME."""
        return now < self.until or now < self._stands_by_until

    @property
    def term(self) -> int:
        """Of the last Lease that this process wrote."""
        return term_of(self._lease["spec"]) if self._lease is not None else 0

    async def acquire(self) -> None:
        """Returns when this process leads, under a term that nobody had."""
        while True:
            self.tried_at = boottime()
            try:
                found = await self._kube.get(self._path)
                verdict = self._election.judge(found["spec"] if found is not None else None, boottime())
                if verdict is not Verdict.WAIT:  # RENEW too: an earlier life of this identity had that term
                    await self._take(found)
                    self._stands_by_until = float("-inf")
                    return
                self._stands_by_until = self.tried_at + self._timings.duration
            except Conflict:
                pass
            except _AWAY as error:
                log.warning("waiting to lead: %s", error.message)
            await asyncio.sleep(self._timings.renewal)

    async def keep(self, told: Told) -> None:
        """Renew for ever, and say so. Raises LeadershipLost once another holds the Lease."""
        await told(self.until)
        while True:
            await asyncio.sleep(self._timings.renewal)
            try:
                await self._renew()
            except _AWAY as error:
                log.warning("the Lease was not renewed: %s", error.message)
                continue
            await told(self.until)

    async def raise_term(self, above: int) -> None:
        """Go on under a term above ``above``, which somebody had although this Lease tells of none (a restored one)."""
        while True:
            try:
                await self._take(self._lease, above=above)
            except _AWAY:
                await asyncio.sleep(self._timings.renewal)
            except Conflict:
                raise LeadershipLost("the Lease was written by another: start anew") from None
            else:
                return

    async def release(self) -> None:
        """Let the next one lead at once. Best effort: otherwise it waits for the Lease's duration."""
        self.until = float("-inf")
        if self._lease is None:
            return
        try:
            await self._kube.replace(self._path, self._with(self._lease, Election.released(self._lease["spec"])))
        except (Conflict, *_AWAY):
            return

    async def _take(self, found: Object | None, *, above: int = 0) -> None:
        sent = boottime()
        spec = self._election.taken(found["spec"] if found is not None else None, datetime.now(UTC), above=above)
        if found is None:
            self._lease = await self._kube.create(self._collection, self._with(None, spec))
        else:
            self._lease = await self._kube.replace(self._path, self._with(found, spec))
        self.until = sent + self._timings.trusted

    async def _renew(self) -> None:
        assert self._lease is not None, "keep follows acquire"  # noqa: S101
        sent = boottime()
        spec = self._election.renewed(self._lease["spec"], datetime.now(UTC))
        try:
            self._lease = await self._kube.replace(self._path, self._with(self._lease, spec))
        except Conflict:
            found = await self._kube.get(self._path)
            holder = found["spec"].get("holderIdentity") if found is not None else None
            if found is None or holder != self._election.identity or term_of(found["spec"]) != self.term:
                self.until = float("-inf")
                raise LeadershipLost(f"the Lease is held by {holder or 'nobody'} now") from None
            self._lease = found  # a label or an owner was written; what counts is still ours, and renewed next time
            return
        self.until = sent + self._timings.trusted

    @property
    def _path(self) -> str:
        return f"{self._collection}/{self._name}"

    def _with(self, held: Object | None, spec: dict[str, Any]) -> Object:
        metadata = held["metadata"] if held is not None else {"name": self._name, "namespace": self._namespace}
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
