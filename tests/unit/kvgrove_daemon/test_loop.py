"""The engine loop on a real (tiny) model: batching, events in order, limits, failures that stay where they belong."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from engine_rig import GENERATION, GREEDY, EngineRig
from transformers import AutoModelForCausalLM

from kvgrove_daemon.engine.errors import BadRequest, ContextTooLong, EngineFailure, QueueFull
from kvgrove_daemon.engine.loop import (
    BlocksComputed,
    EngineRequest,
    Failed,
    Finished,
    Prefilled,
    PromptScored,
    TokenOut,
)
from kvgrove_daemon.engine.runner import ModelRunner
from kvgrove_daemon.engine.scheduler import StepLimits
from kvgrove_daemon.engine.sequence import StepBatch
from kvgrove_protocol.data import Sampling

MakeRig = Callable[..., EngineRig]


@pytest.fixture
def make_rig(tiny_model: Callable[[str], Path]) -> Iterator[MakeRig]:
    rigs: list[EngineRig] = []

    def make(family: str = "llama", **settings: object) -> EngineRig:
        rigs.append(EngineRig(tiny_model(family), **settings))  # type: ignore[arg-type]
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.close()


def test_eight_requests_decode_in_one_forward_per_step_and_say_what_each_says_alone(make_rig: MakeRig) -> None:
    rig = make_rig()
    prompts = [rig.tokens(9 + 13 * i) for i in range(8)]
    for i, prompt in enumerate(prompts):
        rig.loop.add(rig.request(str(i), prompt, new=12))
    while any(not rig.answer(str(i)) for i in range(8)):
        rig.step()
    before = rig.runner.forwards
    events = rig.step()
    assert rig.runner.forwards == before + 1
    assert {event.request_id for event in events if isinstance(event, TokenOut)} == {str(i) for i in range(8)}
    rig.drain()
    for i, prompt in enumerate(prompts):
        assert rig.answer(str(i)) == rig.plain_answer(prompt, 12)


def test_a_reused_prefix_gives_the_same_answer_and_computes_only_the_suffix(make_rig: MakeRig) -> None:
    rig = make_rig()
    shared, asked = rig.tokens(64), rig.tokens(9)
    first = rig.request("first", np.concatenate([shared, rig.tokens(5)]), new=1)
    rig.loop.add(first)
    rig.drain()
    prompt = np.concatenate([shared, asked])
    slots = [*first.slots[:4], *rig.slots(9)]
    batches: list[int] = []
    step = rig.runner.step
    rig.runner.step = lambda batch: batches.append(batch.num_tokens) or step(batch)  # type: ignore[method-assign]
    rig.loop.add(rig.request("second", prompt, new=10, computed=64, slots=slots))
    rig.drain()
    assert batches == [9] + [1] * 9
    assert Prefilled("second", reused=64, computed=73) in rig.events["second"]
    assert rig.answer("second") == rig.plain_answer(prompt, 10)


def test_a_long_prompt_is_computed_in_chunks_while_decodes_go_on(make_rig: MakeRig) -> None:
    rig = make_rig(limits=StepLimits(prefill_chunk=32))
    rig.loop.add(rig.request("short", rig.tokens(5), new=40))
    rig.step()
    rig.loop.add(rig.request("long", rig.tokens(100), new=2))
    for chunk in range(1, 5):
        events = rig.step()
        assert [event for event in events if isinstance(event, TokenOut) and event.request_id == "short"]
        assert BlocksComputed("long", min(2 * chunk, 6)) in events or chunk == 4
    assert len(rig.answer("long")) == 1


def test_events_come_in_the_promised_order(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.loop.add(rig.request("r", rig.tokens(20), new=30))
    rig.drain()
    events = rig.events["r"]
    assert events[:2] == [BlocksComputed("r", 1), Prefilled("r", 0, 20)]
    assert events[-1] == Finished("r", "length", "max_new_tokens")
    known = 20
    for event in events:
        if isinstance(event, TokenOut):
            known += 1
        if isinstance(event, BlocksComputed):
            assert known >= event.upto_block * rig.block_size, "its tokens are known by now"
    # 50 tokens are known, the last has no KV: 49 computed, three whole blocks.
    assert [event.upto_block for event in events if isinstance(event, BlocksComputed)] == [1, 2, 3]


def test_a_stop_token_ends_the_answer_and_is_not_part_of_it(make_rig: MakeRig) -> None:
    rig = make_rig()
    prompt = rig.tokens(20)
    expected = rig.plain_answer(prompt, 8)
    stop = expected[4]
    at = expected.index(stop)
    rig.loop.add(rig.request("r", prompt, stop=frozenset({stop})))
    rig.drain()
    assert rig.answer("r") == expected[:at]
    assert rig.events["r"][-1] == Finished("r", "stop", "stop_token")


def test_no_new_tokens_means_a_warm_up(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.loop.add(rig.request("warm", rig.tokens(33), new=0))
    rig.drain()
    assert rig.events["warm"] == [
        BlocksComputed("warm", 2),
        Prefilled("warm", 0, 33),
        Finished("warm", "length", "max_new_tokens"),
    ]


def test_the_context_is_a_limit_with_a_name(make_rig: MakeRig) -> None:
    rig = make_rig("mistral")  # its window of 512 is its context here
    assert rig.runner.shape.max_context == 512
    with pytest.raises(ContextTooLong, match="512 prompt tokens, but the model's context holds 512"):
        rig.loop.add(rig.request("long", rig.tokens(512)))
    rig.loop.add(rig.request("r", rig.tokens(508), new=100))
    rig.drain()
    assert len(rig.answer("r")) == 4
    assert rig.events["r"][-1] == Finished("r", "length", "context")


def test_a_full_pool_ends_one_answer_and_says_so(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.loop.add(rig.request("r", rig.tokens(30), new=100))
    rig.loop.add(rig.request("roomy", rig.tokens(20), new=10))
    rig.room = False
    rig.drain()
    assert rig.events["r"][-1] == Finished("r", "length", "pool")
    assert len(rig.answer("r")) == 3, "30 prompt tokens and the KV of two answers fill 32 places; the third is free"
    assert rig.events["roomy"][-1] == Finished("roomy", "length", "max_new_tokens")
    assert rig.asked == [("r", 4), ("r", 1)], "one block would do where four are not to be had"


def test_a_cancelled_request_is_touched_no_more(make_rig: MakeRig) -> None:
    rig = make_rig(limits=StepLimits(prefill_chunk=32))
    gone = rig.request("gone", rig.tokens(100))
    rig.loop.add(gone)
    rig.loop.add(rig.request("other", rig.tokens(5), new=3))
    rig.step()
    assert rig.loop.cancel("gone")
    assert not rig.loop.cancel("gone")
    rig.arena.wipe(gone.slots)
    rig.drain()
    assert all(rig.arena.read_block(slot) == bytes(rig.arena.layout.block_bytes) for slot in gone.slots)
    assert not any(isinstance(event, Finished | Failed) for event in rig.events["gone"])
    assert len(rig.answer("other")) == 3


def test_sampling_with_a_seed_does_not_depend_on_neighbours(make_rig: MakeRig) -> None:
    rig = make_rig()
    prompt, sampling = rig.tokens(20), Sampling(temperature=1.0, top_p=0.9, seed=42)
    rig.loop.add(rig.request("alone", prompt, sampling=sampling))
    rig.drain()
    for i in range(3):
        rig.loop.add(rig.request(f"n{i}", rig.tokens(7 + i), sampling=Sampling(temperature=1.3)))
    rig.loop.add(rig.request("batched", prompt, sampling=sampling))
    rig.drain()
    assert rig.answer("alone") == rig.answer("batched")


def test_logprobs_come_where_they_were_asked_for(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.loop.add(rig.request("r", rig.tokens(9), new=2, sampling=Sampling(temperature=0.0, top_logprobs=3)))
    rig.loop.add(rig.request("none", rig.tokens(9), new=2))
    rig.drain()
    for event in rig.events["r"]:
        if isinstance(event, TokenOut):
            assert event.logprob is not None
            assert event.logprob.top[0] == (event.token_id, event.logprob.logprob)
            assert len(event.logprob.top) == 3
    assert all(event.logprob is None for event in rig.events["none"] if isinstance(event, TokenOut))


def test_cor_11_a_prompt_s_log_probabilities_are_the_model_s_whatever_the_chunks(make_rig: MakeRig) -> None:
    """Over steps of 64 tokens, beside another request, equal to one plain forward."""
    rig = make_rig(limits=StepLimits(prefill_chunk=100))
    prompt = rig.tokens(150)
    rig.loop.add(rig.request("other", rig.tokens(40), new=6))
    rig.loop.add(dataclasses.replace(rig.request("scored", prompt, new=3), prompt_logprobs=2))
    rig.drain()
    kinds = [type(event) for event in rig.events["scored"]]
    assert kinds.index(Prefilled) > max(at for at, kind in enumerate(kinds) if kind is PromptScored)
    entries = [each for event in rig.events["scored"] if isinstance(event, PromptScored) for each in event.logprobs]
    assert [each.token_id for each in entries] == prompt[1:].tolist()
    assert all(len(each.top) == 2 for each in entries)
    model = AutoModelForCausalLM.from_pretrained(rig.source.path, dtype=torch.float32, local_files_only=True).eval()
    with torch.inference_mode():
        logprobs = torch.log_softmax(model(torch.from_numpy(prompt)[None]).logits[0], dim=-1)
    expected = [float(logprobs[at, token]) for at, token in enumerate(prompt[1:].tolist())]
    assert [each.logprob for each in entries] == pytest.approx(expected, abs=1e-3)
    assert rig.answer("scored") == rig.plain_answer(prompt, 3)
    assert len(rig.answer("other")) == 6


def test_a_failed_forward_fails_its_requests_and_the_loop_goes_on(make_rig: MakeRig) -> None:
    rig = make_rig(limits=StepLimits(max_batch=1))
    step = rig.runner.step

    def out_of_memory(_batch: StepBatch) -> torch.Tensor:
        rig.runner.step = step  # type: ignore[method-assign]
        raise torch.OutOfMemoryError("a secret prompt")

    rig.loop.add(rig.request("hit", rig.tokens(9)))
    rig.loop.add(rig.request("next", rig.tokens(9), new=2))
    rig.runner.step = out_of_memory  # type: ignore[method-assign]
    rig.drain()
    (failed,) = rig.events["hit"]
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, EngineFailure)
    assert "secret" not in failed.error.message
    assert len(rig.answer("next")) == 2


def test_nan_fails_the_request_that_met_it(make_rig: MakeRig) -> None:
    rig = make_rig()
    bad = rig.request("bad", rig.tokens(40), computed=16)
    rig.arena.pool[:, :, bad.slots[0] * 16] = float("nan")
    rig.loop.add(bad)
    rig.loop.add(rig.request("good", rig.tokens(9), new=2))
    rig.drain()
    assert isinstance(rig.events["bad"][-1], Failed)
    assert len(rig.answer("good")) == 2


def test_two_generations_take_turns(make_rig: MakeRig, tiny_model: Callable[[str], Path]) -> None:
    rig, other = make_rig(), make_rig("qwen3")
    rig.loop.host(b"o" * 32, other.runner)
    prompt = rig.tokens(20)
    ours = rig.request("ours", prompt, new=6)
    theirs = other.request("theirs", prompt, new=6)
    rig.loop.add(ours)
    rig.loop.add(EngineRequest("theirs", b"o" * 32, prompt, 0, theirs.slots, GREEDY, 6))
    order = [rig.step()[0].request_id for _ in range(4)]
    assert order == ["ours", "theirs", "ours", "theirs"]
    rig.drain()
    assert rig.answer("ours") == rig.plain_answer(prompt, 6)
    assert rig.answer("theirs") == other.plain_answer(prompt, 6)


def test_a_generation_taken_off_fails_its_requests_and_lets_go_of_the_weights(
    make_rig: MakeRig, tiny_model: Callable[[str], Path]
) -> None:
    rig = make_rig()
    runner = ModelRunner.load(rig.source, rig.arena)
    alive = weakref.ref(runner)
    rig.loop.host(b"o" * 32, runner)
    del runner
    rig.loop.add(EngineRequest("r", b"o" * 32, rig.tokens(5), 0, rig.slots(5), GREEDY, 6))
    (failed,) = rig.loop.unhost(b"o" * 32)
    assert isinstance(failed, Failed)
    assert failed.request_id == "r"
    assert not rig.loop.has_work
    assert rig.loop.unhost(b"o" * 32) == []
    gc.collect()
    assert alive() is None


def test_what_cannot_be_run_is_refused_by_field(make_rig: MakeRig) -> None:
    rig = make_rig(max_requests=2)
    good = rig.request("a", rig.tokens(40))
    for field, request in {
        "generation": EngineRequest("x", b"?", good.tokens, 0, good.slots, GREEDY, 1),
        "tokens": EngineRequest("x", GENERATION, [], 0, good.slots, GREEDY, 1),
        "computed": EngineRequest("x", GENERATION, good.tokens, 8, good.slots, GREEDY, 1),
        "slots": EngineRequest("x", GENERATION, good.tokens, 0, good.slots[:2], GREEDY, 1),
        "max_new_tokens": EngineRequest("x", GENERATION, good.tokens, 0, good.slots, GREEDY, -1),
    }.items():
        with pytest.raises(BadRequest) as refused:
            rig.loop.add(request)
        assert refused.value.field == field
    with pytest.raises(BadRequest, match="computed"):  # the last token is always computed
        rig.loop.add(EngineRequest("x", GENERATION, good.tokens[:32], 32, good.slots, GREEDY, 1))
    rig.loop.add(good)
    with pytest.raises(BadRequest, match="already in use"):
        rig.loop.add(good)
    rig.loop.add(rig.request("b", rig.tokens(4)))
    with pytest.raises(QueueFull, match="holds 2 requests"):
        rig.loop.add(rig.request("c", rig.tokens(4)))


def test_load_is_measured_with_the_given_clock(make_rig: MakeRig) -> None:
    ticks = iter(range(1000))
    rig = make_rig(clock=lambda: float(next(ticks)), limits=StepLimits(max_batch=1, prefill_chunk=32))
    rig.loop.add(rig.request("a", rig.tokens(64), new=3))
    rig.loop.add(rig.request("b", rig.tokens(20), new=3))
    load = rig.loop.load()
    assert (load.queued_prefill_tokens, load.running, load.waiting) == (84, 0, 2)
    assert (load.prefill_tokens_per_s, load.decode_steps_per_s) == (0.0, 0.0)
    rig.step()
    load = rig.loop.load()
    assert (load.queued_prefill_tokens, load.running, load.waiting) == (52, 1, 1)
    assert load.prefill_tokens_per_s == 32.0  # 32 tokens between two ticks of a second
    rig.drain()
    load = rig.loop.load()
    assert (load.queued_prefill_tokens, load.running, load.waiting) == (0, 0, 0)
    assert load.decode_steps_per_s == 1.0
