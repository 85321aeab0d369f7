"""From cache events to the event log: the one sink that every store of a node reports to."""

from collections.abc import Sequence

from kvgrove_daemon.event_log import EventLog
from kvgrove_protocol.events import HOST


class LoggedResidency:
    """A `cache.resident.ResidencySink` that notes changes of one tier down in order."""

    def __init__(self, log: EventLog, tier: str = HOST) -> None:
        self.log = log
        self.tier = tier

    def on_stored(self, keys: Sequence[bytes]) -> None:
        self.log.stored(keys, self.tier)

    def on_removed(self, keys: Sequence[bytes]) -> None:
        self.log.removed(keys, self.tier)
