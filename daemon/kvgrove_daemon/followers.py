"""Who follows this node's residency events, and what they are sent."""

from collections.abc import Callable, Iterable

from kvgrove_daemon.event_log import EventLog
from kvgrove_protocol.data import ToGateway
from kvgrove_protocol.events import NodeLoad


class Followers:
    """Fans the event log out. Belongs to the core thread; ``send`` must not wait."""

    def __init__(self, log: EventLog, send: Callable[[bytes, ToGateway], None]) -> None:
        self._log = log
        self._send = send
        self._peers: set[bytes] = set()

    def flush(self, load: NodeLoad, *, heartbeat: bool = False) -> None:
        """Send what has changed, or an empty batch when a ``heartbeat`` is due."""
        batch = self._log.flush(load, heartbeat=heartbeat)
        if batch is not None:
            for peer in self._peers:
                self._send(peer, batch)

    def add(self, peer: bytes, keys: Iterable[bytes], load: NodeLoad) -> None:
        """``peer`` gets all READY ``keys`` now, then every later batch. Adding it again sends the snapshot again."""
        self.flush(load)
        for chunk in self._log.snapshot(keys):
            self._send(peer, chunk)
        self._peers.add(peer)

    def remove(self, peer: bytes) -> None:
        self._peers.discard(peer)
