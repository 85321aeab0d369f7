"""A placed task on its way through the engine: what it asks for, how its misses are explained, how its build ends.

Pure but for the build it is given. Must not know: other requests, gateways.
"""

import numpy as np

from kvgrove_daemon.accounting import account, missed_ranges
from kvgrove_daemon.active import Work
from kvgrove_daemon.answers import Decode
from kvgrove_daemon.cache.store import Build
from kvgrove_daemon.engine.requests import EngineRequest
from kvgrove_daemon.history import ReuseHistory
from kvgrove_daemon.model_host import HostedModel
from kvgrove_daemon.request_life import RequestEvent
from kvgrove_prompt.prompt import pack_tokens, unpack_tokens
from kvgrove_protocol.reasons import MissReason


def engine_request(request_id: str, work: Work) -> EngineRequest:
    """What the engine is asked to do for ``work``, under an id that is unique in this node."""
    task = work.task
    return EngineRequest(
        request_id=request_id,
        generation=task.model.generation,
        tokens=np.frombuffer(task.tokens, "<u4").astype(np.int64),
        computed=work.reused_tokens,
        slots=list(work.build.slots),
        sampling=task.sampling,
        max_new_tokens=task.max_new_tokens,
        stop_token_ids=task.stop_token_ids,
        prompt_logprobs=task.prompt_logprobs,
    )


def explain(work: Work, history: ReuseHistory) -> dict[MissReason, int]:
    """Reason -> prompt tokens that ``work`` computes: with what it reuses, they add up to the prompt (I10)."""
    task, chain = work.task, work.build.chain
    if task.cold is not None:
        return {task.cold: task.prompt_tokens}
    store = task.model.pool.store
    missed = missed_ranges(
        token_count=task.prompt_tokens,
        reused=work.reused_tokens,
        block_size=chain.block_size,
        keys=chain.keys,
        gone=lambda key: work.why.get(key) or store.gone(key),
        zone_list=work.zones,
        history=history,
        retokenised=history.answers.retokenised_blocks(
            work.private_realm, chain, task.spans, work.reused_tokens // chain.block_size, decoder(task.model)
        ),
    )
    return account(missed)


def remember(work: Work, history: ReuseHistory) -> None:
    """What a later request's misses may be explained by; nothing where the request stored nothing."""
    if work.build.bypass is not None:
        return
    for zone in work.zones:
        history.record(zone.names, zone.state)
    said, stops = work.said, work.task.stop_token_ids
    if said and said[-1] in stops:
        said = said[:-1]
    history.answers.record(work.private_realm, work.build.chain, pack_tokens(said), decoder(work.task.model))


def decoder(model: HostedModel) -> Decode:
    """How answers of ``model`` read."""
    return lambda ids: model.tokenizer.decode(unpack_tokens(ids))


def take_loaded(work: Work, upto_block: int) -> int:
    """Note what a slower tier has brought, up to ``upto_block``; answers how many leading blocks are whole now."""
    if work.restore is None:
        raise ValueError("nothing was to be loaded")
    keys, first = work.build.chain.keys, work.build.reused_blocks
    whole = max(first, min(upto_block, work.restore.upto))
    for tier, blocks in work.restore.by_tier(whole - first).items():
        work.reused[tier] = work.reused.get(tier, 0) + blocks * work.build.chain.block_size
    work.why |= dict.fromkeys(keys[whole : work.restore.upto], MissReason.CACHE_ERROR)
    return whole


def end_build(build: Build, event: RequestEvent) -> None:
    """Give slots and lease back, in the way that fits what ended the request."""
    match event:
        case RequestEvent.FINISH:
            build.finish()
        case RequestEvent.FAIL:
            build.fail()
        case _:
            build.cancel()
