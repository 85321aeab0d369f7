"""The models of a node as its requests see them: which may be used, and which are let go.

Belongs to the core thread. Invariant: a model's weights stay for as long as anybody works with them.
"""

from collections.abc import Iterable

from kvgrove_daemon.engine.loop import EngineLoop
from kvgrove_daemon.engine.scheduler import StepLimits
from kvgrove_daemon.model_host import HostedModel


class ServedModels:
    """Generation -> model, over one engine."""

    def __init__(self, engine: EngineLoop) -> None:
        self._engine = engine
        self.usable: dict[bytes, HostedModel] = {}
        """Those that new requests may use."""
        self._retired: set[bytes] = set()

    def host(self, model: HostedModel) -> None:
        """Serve ``model`` from now on, under its generation."""
        self.usable[model.generation] = model
        self._retired.discard(model.generation)
        limits = StepLimits(max_batch=model.max_batch, prefill_chunk=model.prefill_chunk)
        self._engine.host(model.generation, model.runner, limits)

    def retire(self, generation: bytes) -> None:
        """Take no new requests for ``generation``; those under way finish on it."""
        self.usable.pop(generation, None)
        self._retired.add(generation)

    def let_go(self, in_use: Iterable[bytes]) -> None:
        """Free the weights of retired models that nobody uses any more."""
        if not self._retired:
            return
        for generation in self._retired.difference(in_use):
            self._engine.unhost(generation)
            self._retired.discard(generation)
