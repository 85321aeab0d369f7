"""The export of one node, put together: exporter in the core thread, outbox between, publisher in its own."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack

from prometheus_client import CollectorRegistry

from kvgrove_daemon.cache.index import BlockIndex
from kvgrove_daemon.kv_events.address import ExportSettings
from kvgrove_daemon.kv_events.exporter import Exporter
from kvgrove_daemon.kv_events.metrics import ExportMetrics
from kvgrove_daemon.kv_events.outbox import Outbox
from kvgrove_daemon.kv_events.publisher import Publisher
from kvgrove_daemon.kv_events.schema import Encoder
from kvgrove_daemon.namespaces import PlanTable

log = logging.getLogger(__name__)


class KvEventExport:
    """Bound on construction (raises ExportRefused), publishing from `start` to `close`."""

    def __init__(
        self,
        settings: ExportSettings,
        *,
        table: Callable[[], PlanTable],
        indexes: Callable[[], Mapping[str, Iterable[BlockIndex]]],
        nearest: str,
        clock: Callable[[], float],
        registry: CollectorRegistry,
    ) -> None:
        """``indexes``: tier -> indexes of what lies there. ``nearest``: the tier that the engine computes in."""
        metrics = ExportMetrics(registry)
        self._outbox = Outbox()
        self.exporter = Exporter(table, indexes, self._outbox, metrics, clock)
        with ExitStack() as undo:
            undo.callback(self._outbox.close)
            self._publisher = Publisher(settings, self._outbox, Encoder(nearest), metrics, now=time.time)
            undo.pop_all()
        self.address, self.replay_address = self._publisher.address, self._publisher.replay_address

    def start(self) -> None:
        self._publisher.start()
        log.info("KV events on %s, replay on %s", self.address, self.replay_address or "(none)")

    def close(self) -> None:
        if self._publisher.close():
            self._outbox.close()
