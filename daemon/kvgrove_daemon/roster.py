"""Who is here: all requests of a node that have not ended.

Role: number them in order of arrival, and answer questions about many of them at once. Belongs to the core thread.
Must not know: what a request does next.
"""

from collections.abc import Iterator
from typing import Final

from kvgrove_daemon.active import Active, Work
from kvgrove_daemon.cache.store import BlockStore
from kvgrove_daemon.commands import Start
from kvgrove_daemon.request_life import RequestState
from kvgrove_protocol.chain import TOKEN_BYTES

WAITING: Final = (RequestState.WAITING_FLIGHT, RequestState.WAITING_ROOM)


class Roster:
    """Requests by id. Bounded by the engine's requests and by the places for those who wait."""

    def __init__(self) -> None:
        self._active: dict[str, Active] = {}
        self._numbers = 0
        self.warming = 0
        """Those that are warm-up."""

    @property
    def live(self) -> int:
        """Those that somebody asked for."""
        return len(self._active) - self.warming

    def __len__(self) -> int:
        return len(self._active)

    def take_in(self, start: Start | None, namespace_uid: str, arrived: float) -> Active:
        """A new one, ARRIVED. ``start`` None: warm-up."""
        self._numbers += 1
        active = Active(self._numbers, start, namespace_uid, arrived)
        self._active[active.id] = active
        self.warming += start is None
        return active

    def get(self, request_id: str) -> Active | None:
        """By its id in this node; None once it has ended."""
        return self._active.get(request_id)

    def remove(self, active: Active) -> None:
        del self._active[active.id]
        self.warming -= active.start is None

    def of(self, peer: bytes, request_id: str | None = None) -> list[Active]:
        """All that ``peer`` asked for, or those with one of its request ids."""
        return [
            active
            for active in self._active.values()
            if active.peer == peer and request_id in (None, active.request_id)
        ]

    @property
    def waiting(self) -> int:
        return sum(active.state in WAITING for active in self._active.values())

    def waiting_of(self, tenant: str | None) -> int:
        return sum(
            active.state in WAITING and active.start is not None and active.start.request.caller.tenant == tenant
            for active in self._active.values()
        )

    @property
    def waiting_tokens(self) -> int:
        """Prompt tokens of those who wait."""
        waiting = (active.start for active in self._active.values() if active.state in WAITING)
        return sum(len(start.request.tokens) // TOKEN_BYTES for start in waiting if start is not None)

    def generations(self) -> set[bytes]:
        """Whose models somebody works with."""
        return {work.task.model.generation for work in self._works()}

    def works_in(self, store: BlockStore) -> bool:
        """Whether anybody has slots of that pool."""
        return any(work.task.model.pool.store is store for work in self._works())

    def _works(self) -> Iterator[Work]:
        return (active.work for active in self._active.values() if active.work is not None)
