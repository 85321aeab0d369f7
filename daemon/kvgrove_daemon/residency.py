"""From cache events to the event log: the one sink that every store of a node reports to."""

from collections.abc import Sequence

from kvgrove_daemon.event_log import EventLog


class LoggedResidency:
    """A `cache.resident.ResidencySink` that notes changes down in order."""

    def __init__(self, log: EventLog) -> None:
        self.log = log

    def on_stored(self, keys: Sequence[bytes]) -> None:
        self.log.stored(keys)

    def on_removed(self, keys: Sequence[bytes]) -> None:
        self.log.removed(keys)
