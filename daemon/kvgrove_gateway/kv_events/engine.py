"""What one engine that is not ours holds, as the router's index knows it: its stream, translated into a slot."""

from collections.abc import Callable, Sequence

from kvgrove_gateway.kv_events.source import (
    PROBE,
    Apply,
    AskListing,
    AskReplay,
    Clear,
    Effect,
    Input,
    Position,
    SourceState,
    Unusable,
    step,
)
from kvgrove_gateway.kv_events.translate import Incompatible, Remove, Store, Translator
from kvgrove_gateway.kv_events.wire import Batch
from kvgrove_gateway.metrics import Metrics
from kvgrove_gateway.router.index import BlockIndex

Ask = AskReplay | AskListing


class EngineResidency:
    """Carries a source's effects out. On the event loop only."""

    def __init__(self, index: BlockIndex, metrics: Metrics, translator: Callable[[], Translator]) -> None:
        """``translator``: a new one for each data-parallel rank, which has blocks and numbering of its own."""
        self._index, self._metrics = index, metrics
        self._make = translator
        self._translators: dict[int, Translator] = {}
        self._position = Position()
        self._slot: int | None = None

    @property
    def position(self) -> Position:
        return self._position

    @property
    def slot(self) -> int | None:
        """The slot to match against; None while what the engine holds is in doubt, or cannot be known."""
        return self._slot if self._position.state is SourceState.LIVE else None

    @property
    def blocks(self) -> int:
        """Blocks that the engine holds, as far as they could be named."""
        return sum(len(translator) for translator in self._translators.values())

    def take(self, input_: Input) -> Ask | None:
        """What the engine is to be asked because of ``input_``, if anything."""
        self._position, effects = step(self._position, input_)
        try:
            ask = self._do(effects)
        except Incompatible as error:
            self._position, effects = step(self._position, Unusable(error.code))
            ask = self._do(effects)
        self._index.sweep()
        return ask

    def end(self) -> None:
        """Nothing is known of the engine any more."""
        self._position = Position()
        self._translators.clear()
        if self._slot is not None:
            self._index.close_slot(self._slot)
            self._slot = None

    def _do(self, effects: Sequence[Effect]) -> Ask | None:
        ask: Ask | None = None
        for effect in effects:
            match effect:
                case Clear():
                    self._translators.clear()
                    self._renew_slot()
                case Apply():
                    self._apply(effect.batch)
                case AskReplay():
                    if effect.reason != PROBE:  # a question in quiet times is no sign of trouble
                        self._metrics.resyncs.labels(effect.reason).inc()
                    ask = effect
                case AskListing():
                    self._metrics.resyncs.labels("listing").inc()
                    ask = effect
        return ask

    def _apply(self, batch: Batch) -> None:
        if batch.rank not in self._translators:
            self._translators[batch.rank] = self._make()
        if self._slot is None:
            self._renew_slot()
        assert self._slot is not None  # noqa: S101 - just made
        if batch.skipped:
            self._metrics.events_ignored.labels("unknown_kind").inc(batch.skipped)
        translator = self._translators[batch.rank]
        changes = translator.changes(batch.events)
        for reason, count in translator.unmapped.items():
            self._metrics.events_unmapped.labels(reason).inc(count)
        translator.unmapped.clear()
        for change in changes:
            match change:
                case Store():
                    self._index.store(self._slot, b"".join(change.keys), change.tier)
                case Remove():
                    self._index.remove(self._slot, b"".join(change.keys), change.tier)
                case _:
                    self._renew_slot()

    def _renew_slot(self) -> None:
        if self._slot is not None:
            self._index.close_slot(self._slot)
        self._slot = self._index.open_slot()
