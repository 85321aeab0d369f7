"""Keeps the warm set that of the plan in force: fetches texts, assembles prefixes, hands the targets to the core.

On the event loop; assembling runs in threads. A namespace whose texts cannot be had now is tried again after a while,
and holds no other one up. Must not know: how targets are computed, or when.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

from kvgrove_daemon.commands import Warm, WarmFence
from kvgrove_daemon.model_host import HostedModel
from kvgrove_daemon.namespaces import HostedNamespace, PlanTable
from kvgrove_daemon.plan_effects import rooms
from kvgrove_daemon.reporting import warm_fence
from kvgrove_daemon.warmup import Served, WarmTarget, wanted_bodies, warm_targets
from kvgrove_link.body_store import BodyStore
from kvgrove_protocol.errors import KvgroveError, Retryable, Terminal

log = logging.getLogger(__name__)

RETRY_S = 2.0


class WarmResolving:
    """`run` for as long as the node serves; `changed` whenever the plan or a model did."""

    def __init__(
        self,
        table: Callable[[], PlanTable],
        model: Callable[[bytes], HostedModel | None],
        bodies: BodyStore,
        submit: Callable[[Warm], None],
    ) -> None:
        """``model``: a generation -> its model, once it is loaded here."""
        self._table = table
        self._model = model
        self._bodies = bodies
        self._submit = submit
        self._news = asyncio.Event()
        self.problems: Mapping[str, KvgroveError] = {}
        """Namespace UID -> why its prefixes cannot be assembled: requests will say so too."""

    def changed(self) -> None:
        self._news.set()

    async def run(self) -> None:
        """Resolve the targets of each new plan, for ever."""
        while True:
            await self._news.wait()
            self._news.clear()
            await self._resolve(self._table())

    async def _resolve(self, table: PlanTable) -> None:
        wanted = {uid: wanted_bodies(namespace) for uid, namespace in table.namespaces.items()}
        templates = {model.chat_template for model in table.models.values() if model.chat_template}
        self._bodies.retain(templates.union(*wanted.values()))
        targets: list[WarmTarget] = []
        fences: dict[Served, WarmFence] = {}
        problems: dict[str, KvgroveError] = {}
        for uid, namespace in table.namespaces.items():
            for served in namespace.served():
                model = self._model(served.generation)
                if model is None:
                    continue
                try:
                    targets += await self._targets(served, model, wanted[uid])
                except Retryable as error:
                    log.warning("warm-up of %s waits: %s", namespace.plan.name, error)
                    asyncio.get_running_loop().call_later(RETRY_S, self._news.set)
                    continue
                except Terminal as error:
                    problems[uid] = error
                fences[uid, served.generation] = warm_fence(namespace)
        self.problems = problems
        self._submit(Warm(targets, rooms(table), fences))

    async def _targets(
        self, namespace: HostedNamespace, model: HostedModel, wanted: Iterable[bytes]
    ) -> list[WarmTarget]:
        texts = await self._bodies.get(wanted)
        return await asyncio.to_thread(warm_targets, namespace, model.tokenizer, model.inputs.block_size, texts)
