"""Computes warm targets through the same cache and engine as requests, for nobody.

Belongs to the core thread. A target counts only under the plan it was resolved under: another generation or fence makes
it void, here as everywhere.
"""

from collections.abc import Mapping

from kvgrove_daemon.cache.flights import WARM_UP
from kvgrove_daemon.judging import Task
from kvgrove_daemon.model_host import HostedModel
from kvgrove_daemon.namespaces import HostedNamespace
from kvgrove_daemon.prompts import CachedPrompt, cached_prompt, chain_of
from kvgrove_daemon.request_runner import RequestRunner
from kvgrove_daemon.surroundings import Surroundings
from kvgrove_daemon.warm_set import WarmSet, Warmth
from kvgrove_daemon.warmup import Served, WarmTarget
from kvgrove_protocol.chain import TOKEN_BYTES
from kvgrove_protocol.data import Sampling


class Warmer:
    """What is wanted warm, how much of it is, and the next thing to compute."""

    def __init__(self, around: Surroundings, runner: RequestRunner) -> None:
        self._around = around
        self._runner = runner
        self.targets = WarmSet(self._ready_blocks)

    def warmth(self) -> Mapping[Served, Warmth]:
        """READY and wanted blocks of each namespace by each generation, from the cache as it is now."""
        return self.targets.measure()

    def next(self) -> None:
        """Start the next targets that are not warm, if there are any and they may be warmed now.

        Only while nobody else is there: warm-up yields to live traffic.
        """
        while not self._runner.roster.live:
            target = self.targets.next(self._around.clock(), self._may_start)
            if target is None:
                return
            self._start(target)

    def _may_start(self, target: WarmTarget) -> bool:
        home = self._home(target)
        return home is not None and self._runner.roster.warming < home[0].plan.warm_parallelism

    def _home(self, target: WarmTarget) -> tuple[HostedNamespace, HostedModel] | None:
        """Where ``target`` belongs, if it is what the plan in force wants and this node may store for it now."""
        hosted = self._around.table().namespaces.get(target.namespace_uid)
        namespace = hosted.under(target.generation) if hosted is not None else None
        model = self._runner.models.usable.get(target.generation)
        if namespace is None or model is None or namespace.plan.suspended or namespace.plan.fence != target.fence:
            return None
        return (namespace, model) if self._around.lease_valid(target.namespace_uid) else None

    def _prompt(self, namespace: HostedNamespace, model: HostedModel, target: WarmTarget) -> CachedPrompt:
        return cached_prompt(
            namespace,
            target.caller,
            target.tokens,
            target.spans,
            block_size=model.pool.store.block_size,
            throwaway=self._around.throwaway,
        )

    def _ready_blocks(self, target: WarmTarget) -> int:
        if (home := self._home(target)) is None:
            return 0
        namespace, model = home
        store = model.pool.store
        prompt = self._prompt(namespace, model, target)
        return store.ready_blocks(chain_of(store, prompt, target.tokens))

    def _start(self, target: WarmTarget) -> None:
        if (home := self._home(target)) is None:
            return
        namespace, model = home
        self._runner.warm(
            Task(
                namespace=namespace,
                model=model,
                cold=None,
                caller=target.caller,
                party=WARM_UP,
                fence=target.fence,
                tokens=target.tokens,
                spans=target.spans,
                prompt_tokens=len(target.tokens) // TOKEN_BYTES,
                sampling=Sampling(temperature=0.0),
                max_new_tokens=0,
            )
        )
