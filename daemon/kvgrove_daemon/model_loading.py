"""Which models are loading, loaded or failed, and what is reported of them.

Loading runs in worker threads, one at a time: two at once would need twice the memory for the same cores. A failure is
reported with its cure and tried again when the plan for the model changes, or after a bounded, growing pause.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from kvgrove_daemon.model_host import HostedModel
from kvgrove_protocol.control import AdapterPlan, ModelPlan, ModelReport
from kvgrove_protocol.errors import KvgroveError

log = logging.getLogger(__name__)

RETRY_S = 5.0
RETRY_MAX_S = 120.0

Identity = tuple[str, str, str, bytes, str, str, int, tuple[AdapterPlan, ...]]


def identity(plan: ModelPlan) -> Identity:
    """What makes it another model to load. Limits (batch, context) are not in it."""
    return (
        plan.name,
        plan.path,
        plan.tokenizer_path,
        plan.chat_template,
        plan.kv_dtype,
        plan.kv_codec,
        plan.block_size,
        tuple(plan.adapters),
    )


@dataclass
class _Entry:
    plan: ModelPlan
    task: asyncio.Task[None]
    model: HostedModel | None = None
    error: KvgroveError | None = None


class ModelLoading:
    """Belongs to the asyncio loop."""

    def __init__(
        self,
        load: Callable[[ModelPlan], Awaitable[HostedModel]],
        loaded: Callable[[HostedModel], None],
        unloaded: Callable[[HostedModel], None],
        changed: Callable[[], None],
    ) -> None:
        """``load`` may take long and raise KvgroveError; ``changed``: there is something new to report."""
        self._load = load
        self._loaded, self._unloaded, self._changed = loaded, unloaded, changed
        self._entries: dict[Identity, _Entry] = {}
        self._one_at_a_time = asyncio.Lock()

    def follow(self, plans: Mapping[str, ModelPlan]) -> None:
        """Load what is planned and not here; let go of what is planned no more."""
        wanted = {identity(plan): plan for plan in plans.values()}
        for name in [name for name in self._entries if name not in wanted]:
            entry = self._entries.pop(name)
            entry.task.cancel()
            if entry.model is not None:
                self._unloaded(entry.model)
        for name, plan in wanted.items():
            if name in self._entries:
                self._entries[name].plan = plan
            else:
                self._entries[name] = _Entry(plan, asyncio.create_task(self._keep_trying(name)))

    async def _keep_trying(self, name: Identity) -> None:
        pause = RETRY_S
        while True:
            entry = self._entries[name]
            try:
                async with self._one_at_a_time:
                    model = await self._load(entry.plan)
            except KvgroveError as error:
                log.error("model %s: %s", entry.plan.name, error)
                entry.error = error
                self._changed()
                await asyncio.sleep(pause)
                pause = min(pause * 2, RETRY_MAX_S)
                continue
            entry.model, entry.error = model, None
            log.info("model %s is loaded", entry.plan.name)
            self._loaded(model)
            self._changed()
            return

    def by_generation(self, generation: bytes) -> HostedModel | None:
        """A loaded model of that generation."""
        models = (entry.model for entry in self._entries.values())
        return next((model for model in models if model is not None and model.generation == generation), None)

    def by_bundle(self, digest: bytes) -> HostedModel | None:
        """The loaded model whose tokenizer bundle has this digest."""
        models = (entry.model for entry in self._entries.values())
        return next((model for model in models if model is not None and model.bundle_digest == digest), None)

    def reports(self) -> list[ModelReport]:
        return [_report(entry) for entry in self._entries.values()]

    async def close(self) -> None:
        for entry in self._entries.values():
            entry.task.cancel()
        await asyncio.gather(*(entry.task for entry in self._entries.values()), return_exceptions=True)


def _report(entry: _Entry) -> ModelReport:
    model = entry.model
    if model is not None:
        return ModelReport(
            name=entry.plan.name,
            state="ready",
            inputs=model.inputs,
            tokenizer_bundle=model.bundle_digest,
            adapters=model.adapters,
            layout=model.fingerprint,
            max_model_len=model.max_model_len,
        )
    if entry.error is not None:
        return ModelReport(name=entry.plan.name, state="failed", code=entry.error.code, message=entry.error.message)
    return ModelReport(name=entry.plan.name, state="loading")
