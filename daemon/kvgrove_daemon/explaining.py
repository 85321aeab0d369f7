"""What a prompt would reuse here if it were sent now, range by range, and why not the rest (I10).

Role: the look-up of a request without the request: it goes through the same judgement, match and accounting, so that
what is explained is what would happen. Invariants: read-only towards the cache: no lease, no use of a block, nothing
stored or remembered, no figure that a hit ratio counts; permission is checked as for a request, and misses follow from
the caller's own realm (I2). What only waiting would tell (`building`) is not foreseen.
Belongs to the core thread. Must not know: sockets, gateways, engines.
"""

from collections.abc import Callable

from kvgrove_daemon.accounting import missed_ranges, reusable_limit
from kvgrove_daemon.cache.chains import Chain
from kvgrove_daemon.cache.store import BlockStore
from kvgrove_daemon.cache.tiers.stack import Lying
from kvgrove_daemon.computing import decoder
from kvgrove_daemon.history import ReuseHistory
from kvgrove_daemon.judging import Task, judge
from kvgrove_daemon.prompts import cached_prompt, chain_of
from kvgrove_daemon.refusals import Refusal
from kvgrove_daemon.served_models import ServedModels
from kvgrove_daemon.surroundings import Surroundings
from kvgrove_protocol.data import Error, Explained, ExplainedRange, Generate
from kvgrove_protocol.reasons import MissReason

LookBelow = Callable[[BlockStore, Chain, int, int], Lying]
"""What lower tiers hold of a chain from a block on, below another."""


class Explainer:
    """Explains prompts against the cache as it is."""

    def __init__(self, around: Surroundings, models: ServedModels, history: ReuseHistory, below: LookBelow) -> None:
        self._around = around
        self._models = models
        self._history = history
        self._below = below

    def answer(self, request: Generate) -> Explained | Error:
        """Error where the request itself would be refused, with the same code."""
        valid = self._around.lease_valid(request.namespace_uid)
        task = judge(request, self._around.table(), self._models.usable, lease_valid=valid)
        if isinstance(task, Refusal):
            return task.to(request.request_id)
        return Explained(request_id=request.request_id, ranges=self._ranges(task))

    def _ranges(self, task: Task) -> list[ExplainedRange]:
        if task.cold is not None:
            return [ExplainedRange(0, task.prompt_tokens, reason=task.cold)]
        store = task.model.pool.store
        size = store.block_size
        prompt = cached_prompt(
            task.namespace,
            task.caller,
            task.tokens,
            task.spans,
            block_size=size,
            throwaway=self._around.throwaway,
        )
        chain = chain_of(store, prompt, task.tokens)
        stop = reusable_limit(chain.token_count, size) // size
        matched = min(store.ready_blocks(chain), stop)
        lying = self._below(store, chain, matched, stop)
        ranges = [ExplainedRange(0, matched * size, task.model.pool.tier)] if matched else []
        reused = matched
        why: dict[bytes, MissReason] = {}
        for tier, first, end in lying.parts:
            loaded = min(end, lying.worth_until)
            if loaded > first:
                ranges.append(ExplainedRange(first * size, loaded * size, tier))
                reused = loaded
            why |= dict.fromkeys(chain.keys[max(first, loaded) : end], MissReason.NOT_WORTH_LOADING)
        missed = missed_ranges(
            token_count=task.prompt_tokens,
            reused=reused * size,
            block_size=size,
            keys=chain.keys,
            gone=lambda key: why.get(key) or store.gone(key),
            zone_list=prompt.zones,
            history=self._history,
            retokenised=self._history.answers.retokenised_blocks(
                prompt.private_realm, chain, task.spans, reused, decoder(task.model)
            ),
        )
        return ranges + [ExplainedRange(start, end, reason=reason) for start, end, reason in missed]
