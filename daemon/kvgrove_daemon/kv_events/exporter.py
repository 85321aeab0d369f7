"""Which events leave the node: those of namespaces that opted in, and no others (I12). Core thread only.

======================================  =====================================================================
what happened                           what is put into the outbox
======================================  =====================================================================
blocks became READY                     Listed, for namespaces that opted in
blocks went                             Gone, for those that were announced
a namespace opted in or out             Cleared, then all that is exported now
the outbox was full                     (counted) as soon as there is room: Cleared, then all that is exported
somebody asks for a listing             Cleared, then all that is exported, as an answer to them alone
======================================  =====================================================================

It never waits for the publisher. What was lost is never passed over: readers are told to begin anew.
"""

from collections.abc import Callable, Iterable, Mapping

from kvgrove_daemon.cache.index import BlockIndex
from kvgrove_daemon.kv_events.blocks import Cleared, Gone, Listed, Note, in_chains, listed
from kvgrove_daemon.kv_events.metrics import ExportMetrics
from kvgrove_daemon.kv_events.outbox import Item, Outbox
from kvgrove_daemon.namespaces import PlanTable
from kvgrove_protocol.events import EventBatch, Removed, Stored, split_keys

LISTING_S = 1.0
"""At most so often is a listing made for whoever asks: readers must not be able to keep the core busy."""


class Exporter:
    """A `followers.Listener`."""

    def __init__(
        self,
        table: Callable[[], PlanTable],
        indexes: Callable[[], Mapping[str, Iterable[BlockIndex]]],
        outbox: Outbox,
        metrics: ExportMetrics,
        clock: Callable[[], float],
    ) -> None:
        """``indexes``: tier -> indexes of what lies there. ``clock``: seconds."""
        self._table, self._indexes = table, indexes
        self._outbox = outbox
        self._metrics = metrics
        self._clock = clock
        self._next_listing = clock()
        self._seen: PlanTable | None = None
        self._exported: frozenset[str] = frozenset()
        self._announced: dict[str, set[bytes]] = {}
        self._begin_anew = True

    def turn(self, batch: EventBatch | None) -> None:
        """One turn of the core is over, with these changes or with none to tell."""
        self._look_at_plan()
        if self._begin_anew:
            if self._outbox.empty:  # before, it might not fit, and making it costs time
                self._begin_anew = not self._put(Item(self._everything(announce=True)))
        elif batch is not None and batch.events and (notes := self._notes(batch)):
            self._begin_anew = not self._put(Item(notes))
        if not self._begin_anew and self._clock() >= self._next_listing and self._outbox.listing_wanted():
            self._next_listing = self._clock() + LISTING_S
            self._put(Item(self._everything(announce=False), answer=True))

    def _look_at_plan(self) -> None:
        table = self._table()
        if table is self._seen:
            return
        self._seen = table
        exported = frozenset(uid for uid, namespace in table.namespaces.items() if namespace.plan.events_export)
        if exported != self._exported:
            self._exported, self._begin_anew = exported, True

    def _put(self, item: Item) -> bool:
        if self._outbox.put(item):
            return True
        self._metrics.dropped.labels("answer" if item.answer else "overflow").inc()
        return False

    def _notes(self, batch: EventBatch) -> list[Note]:
        notes: list[Note] = []
        for event in batch.events:
            match event:
                case Stored() if self._exported:
                    notes += self._stored(split_keys(event.keys), event.tier)
                case Removed():
                    announced = self._announced.get(event.tier, set())
                    gone = [key for key in split_keys(event.keys) if key in announced]
                    announced.difference_update(gone)
                    notes += [Gone(event.tier, gone)] if gone else []
                case _:
                    continue
        return notes

    def _stored(self, keys: list[bytes], tier: str) -> list[Listed]:
        """What has gone again by now is left out: it was never announced."""
        notes: list[Listed] = []
        for index in self._indexes().get(tier, ()):
            found = (index.find(key) for key in keys)
            mine = [block for block in found if block is not None and index.namespace(block) in self._exported]
            notes += listed(index, mine, tier)
        announced = self._announced.setdefault(tier, set())
        for note in notes:
            announced.update(note.keys)
        return notes

    def _everything(self, *, announce: bool) -> list[Note]:
        notes: list[Note] = [Cleared()]
        if announce:
            self._announced.clear()
        if not self._exported:
            return notes
        for tier, indexes in self._indexes().items():
            for index in indexes:
                mine = (block for block in in_chains(index) if index.namespace(block) in self._exported)
                for note in listed(index, mine, tier):
                    notes.append(note)
                    if announce:
                        self._announced.setdefault(tier, set()).update(note.keys)
        return notes
