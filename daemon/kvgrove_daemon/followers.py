"""Who follows this node's residency events, and what they are sent."""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from kvgrove_daemon.beacons import BuildBeacons
from kvgrove_daemon.event_log import EventLog
from kvgrove_protocol.data import ToGateway
from kvgrove_protocol.events import EventBatch, NodeLoad


class Listener(Protocol):
    """Who sees every batch in the core thread; it must not wait."""

    def turn(self, batch: EventBatch | None) -> None:
        """One turn of the core is over, with these changes or with none to tell."""


class Followers:
    """Fans the event log out. Belongs to the core thread; ``send`` must not wait."""

    def __init__(
        self, log: EventLog, send: Callable[[bytes, ToGateway], None], listener: Listener | None = None
    ) -> None:
        self._log = log
        self._send = send
        self._listener = listener
        self._peers: set[bytes] = set()

    @property
    def beacons(self) -> BuildBeacons:
        """What is being computed: told with the next batch."""
        return self._log.beacons

    def flush(self, load: NodeLoad, *, heartbeat: bool = False) -> None:
        """Send what has changed, or an empty batch when a ``heartbeat`` is due."""
        batch = self._log.flush(load, heartbeat=heartbeat)
        if batch is not None:
            for peer in self._peers:
                self._send(peer, batch)
        if self._listener is not None:
            self._listener.turn(batch)

    def add(
        self, peer: bytes, ready: Mapping[str, Iterable[bytes]], load: NodeLoad, *, boot: str = "", after: int = -1
    ) -> None:
        """``peer`` gets what it lacks now, then every later batch.

        That is the batches after ``after`` of ``boot`` where all of them are still kept, else all that is READY
        (``ready``: tier -> keys). Adding a peer again heals its gap.
        """
        self.flush(load)
        missed = self._log.since(boot, after)
        for message in self._log.snapshot(ready) if missed is None else missed:
            self._send(peer, message)
        self._peers.add(peer)

    def remove(self, peer: bytes) -> None:
        self._peers.discard(peer)
