"""Assembly on the gateway's own path, as JSON: from messages to tokens and keys.

``python bench/assembly.py --json`` prints:

- ``keyed_40k_ms``: block keys of 40,000 tokens that were never seen, once tokenised (32 tokens a block);
- ``lag_p50_ms``, ``lag_p99_ms``, ``lag_max_ms``: how late the event loop wakes a task that sleeps for 2 ms at a time,
  while 100 prompts of about 30,000 tokens each, all different, are assembled at once; ``lag_idle_p99_ms``: before that,
  which is what the machine itself does; ``prompts_s``: how long the hundred take;
- ``last_turn_share``: what assembly of the 20th turn of a conversation costs with the 19 before known, as a share of
  what it costs without; ``last_turn_ms``, ``last_turn_uncached_ms``: the two. The conversation opens with 24,000 tokens
  of instructions and tools' manuals, and goes on with questions of 100 and answers of 300 tokens
  (``conversation_tokens`` in all); the last turn brings one answer and one question that are new;
- ``render_share``: of ``last_turn_ms``, the template's render in its process, there and back.

Everything is the real thing but the texts and the tokenizer, a byte-level BPE trained on made-up words at the start.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from kvgrove_gateway.__main__ import SWITCH_S
from kvgrove_gateway.assembling import Assembling
from kvgrove_gateway.identity.caller import Identity
from kvgrove_gateway.namespaces import Directory, Resolution
from kvgrove_gateway.prepare import Preparation
from kvgrove_gateway.router.keys import KnownChains
from kvgrove_gateway.settings import Limits
from kvgrove_link.body_store import BodyStore
from kvgrove_prompt.bundle import bundle_digest, pack
from kvgrove_prompt.conversation import Conversation, Turn
from kvgrove_prompt.prompt import pack_tokens
from kvgrove_prompt.roles import Message
from kvgrove_protocol.control import ModelPlan, NamespacePlan, NodePlan, Revision
from kvgrove_protocol.fence import Fence
from kvgrove_protocol.identity import Caller, Isolation, Purge

TEMPLATE = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
PROMPTS, PROMPT_TOKENS = 100, 30_000
TURNS, OPENING_TOKENS, QUESTION_TOKENS, ANSWER_TOKENS = 20, 24_000, 100, 300
KEYED_TOKENS = 40_000
ROUNDS = 9


class Words:
    """Text of made-up words, some of them common, and a tokenizer that knows them as real ones know real text."""

    def __init__(self, seed: int = 1) -> None:
        self._draw = random.Random(seed)
        letters = "etaoinshrdlucmfwypvbgkjqxz"
        weights = [len(letters) - rank for rank in range(len(letters))]
        self._known = ["".join(self._draw.choices(letters, weights, k=self._draw.randint(1, 9))) for _ in range(6000)]
        self._weights = [1 / (rank + 5) for rank in range(len(self._known))]

    def text(self, words: int) -> str:
        parts = self._draw.choices(self._known, self._weights, k=words)
        parts[::12] = [f"{part}.\n" for part in parts[::12]]
        return " ".join(parts)

    def bundle(self) -> bytes:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=8192,
            special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        tokenizer.train_from_iterator([self.text(500) for _ in range(200)], trainer)
        tokenizer.add_tokens([AddedToken("<think>", special=False)])
        with tempfile.TemporaryDirectory() as directory:
            folder = Path(directory)
            (folder / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
            config = {"eos_token": "<|im_end|>", "chat_template": TEMPLATE}
            (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
            return pack(folder)


class Rig:
    """The gateway's assembly, with one namespace."""

    def __init__(self, bundle: bytes) -> None:
        async def bodies(_digests: Sequence[bytes]) -> dict[bytes, bytes]:
            return {}

        async def bundles(_digest: bytes) -> bytes:
            return bundle

        model = ModelPlan(name="m", path="/", generation=b"g" * 32, tokenizer_bundle=bundle_digest(bundle))
        namespace = NamespacePlan(
            uid="ns", name="team/ns", model="m", isolation=Isolation.TENANT, purge=Purge(1, b"n"), fence=Fence(1, 1, 1)
        )
        directory = Directory.of(NodePlan(revision=Revision(1, 1), models=[model], namespaces=[namespace]))
        limits = Limits()
        self.bodies = BodyStore(bodies, max_bytes=1 << 20, timeout_s=60.0)
        self.assembling = Assembling(
            limits,
            bodies=self.bodies,
            bundles=bundles,
            registry=CollectorRegistry(),
            throwaway=lambda: os.urandom(32),
            cacheable_minimum=lambda _model: 0,
        )
        self.assembling.follow(directory)
        self.preparation = self.assembling.preparation
        self.forgetful = Preparation(
            self.bodies,
            self.assembling.tokenizers,
            self.assembling.threads,
            KnownChains(limits.known_segments),
            throwaway=lambda: os.urandom(32),
        )
        self._directory = directory

    def resolution(self, user: str) -> Resolution:
        caller = Caller(tenant="t", user=user, scopes=())
        return self._directory.resolve(
            Identity(key_id="k", caller=caller, namespaces=None), "team/ns", lease_valid=True
        )


def keyed_ms() -> float:
    """Median over prompts that are all new."""
    draw, times = random.Random(2), []
    for _ in range(4 * ROUNDS):
        tokens = pack_tokens(draw.choices(range(8192), k=KEYED_TOKENS))
        known = KnownChains(1000)
        began = time.perf_counter()
        known.keys(b"r" * 32, tokens, {1: b"fold"}, block_size=32)
        times.append((time.perf_counter() - began) * 1e3)
    return statistics.median(times)


async def lags(seconds: float | None, until: "asyncio.Future[object] | None" = None) -> list[float]:
    """How late a sleep of 2 ms ended, in ms, again and again for ``seconds`` or until ``until`` is done."""
    found: list[float] = []
    loop = asyncio.get_running_loop()
    end = None if seconds is None else loop.time() + seconds
    while (end is None or loop.time() < end) and (until is None or not until.done()):
        began = loop.time()
        await asyncio.sleep(0.002)
        found.append((loop.time() - began - 0.002) * 1e3)
    return found


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))]


async def crowd(rig: Rig, words: Words, per_token: float) -> dict[str, float]:
    """A hundred long prompts at once."""
    text_words = int(PROMPT_TOKENS * per_token)
    chats = [
        [Message("system", words.text(text_words // 3)), Message("user", words.text(2 * text_words // 3))]
        for _ in range(PROMPTS)
    ]
    idle = await lags(2.0)
    began = time.perf_counter()
    work = asyncio.gather(
        *(rig.preparation.prepare(rig.resolution(f"u{number}"), chat) for number, chat in enumerate(chats))
    )
    late = await lags(None, work)
    prepared = await work
    return {
        "prompts_s": time.perf_counter() - began,
        "prompt_tokens_mean": statistics.mean(each.prompt.count for each in prepared),
        "lag_idle_p99_ms": percentile(idle, 0.99),
        "lag_p50_ms": percentile(late, 0.5),
        "lag_p99_ms": percentile(late, 0.99),
        "lag_max_ms": max(late),
    }


async def last_turn(rig: Rig, words: Words, per_token: float) -> dict[str, float]:
    """The 20th turn with and without a memory of the others; medians."""
    known, unknown, rendered = [], [], []
    tokenizer = await rig.assembling.tokenizers.get(rig.resolution("u").model.tokenizer_bundle)
    for number in range(ROUNDS):
        chat = [Message("system", words.text(int(OPENING_TOKENS * per_token)))]
        for _ in range(TURNS):
            chat.append(Message("user", words.text(int(QUESTION_TOKENS * per_token))))
            chat.append(Message("assistant", words.text(int(ANSWER_TOKENS * per_token))))
        chat.pop()
        who = rig.resolution(f"talker{number}")
        for length in range(2, len(chat), 2):
            await rig.preparation.prepare(who, chat[:length])
        began = time.perf_counter()
        one = await rig.preparation.prepare(who, chat)
        known.append((time.perf_counter() - began) * 1e3)
        began = time.perf_counter()
        other = await rig.forgetful.prepare(who, chat)
        unknown.append((time.perf_counter() - began) * 1e3)
        assert one.prompt == other.prompt
        turns = [Turn(message.role, (message.text,)) for message in chat]
        assert tokenizer.template is not None
        began = time.perf_counter()
        tokenizer.template.render(Conversation(turns))
        rendered.append((time.perf_counter() - began) * 1e3)
    cost = statistics.median(known)
    return {
        "conversation_tokens": one.prompt.count,
        "last_turn_ms": cost,
        "last_turn_uncached_ms": statistics.median(unknown),
        "last_turn_share": cost / statistics.median(unknown),
        "render_share": statistics.median(rendered) / cost,
    }


async def measure() -> dict[str, float]:
    words = Words()
    rig = Rig(words.bundle())
    sys.setswitchinterval(SWITCH_S)  # as the gateway's process does
    try:
        sample = words.text(2000)
        tokenizer = await rig.assembling.tokenizers.get(rig.resolution("u").model.tokenizer_bundle)
        per_token = 2000 / len(tokenizer.encode_text(sample))
        return {
            "keyed_40k_ms": keyed_ms(),
            **await last_turn(rig, words, per_token),
            **await crowd(rig, words, per_token),
        }
    finally:
        rig.assembling.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object (the only form there is)")
    parser.parse_args()
    print(json.dumps({name: round(value, 4) for name, value in asyncio.run(measure()).items()}, indent=2))


if __name__ == "__main__":
    main()
