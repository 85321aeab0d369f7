"""The engine's share of `hotpath.py`: overhead at zero hits, and what a daemon holds beside weights and pool."""

import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from openai import AsyncOpenAI
from transformers import AutoModelForCausalLM

from kvgrove_cli import smollm2
from kvgrove_cli.demo.stage import NAMESPACE, PREFIX, Scene
from kvgrove_cli.fleet import Fleet, FleetOptions
from kvgrove_cli.members import FleetShape
from kvgrove_daemon.cache.arena import SharedMemoryArena
from kvgrove_daemon.cache.layout import as_dtype
from kvgrove_daemon.cache.runs import RunAllocator
from kvgrove_daemon.cache.segments import remove_dead_segments, segment_name
from kvgrove_daemon.cache.store import BlockStore, NoRoom
from kvgrove_daemon.engine.loop import BlocksComputed, EngineLoop, EngineRequest, Finished, TokenOut
from kvgrove_daemon.engine.model_source import open_model
from kvgrove_daemon.engine.runner import ModelRunner
from kvgrove_link.frames import new_boot_id
from kvgrove_protocol.data import Sampling

THREADS = 2
PROMPT, ANSWER, PAIRS = 384, 48, 7
MIB = 1 << 20


class PlainGenerate:
    """transformers' own `generate`, greedy, exactly ANSWER tokens."""

    def __init__(self, path: Path) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, local_files_only=True).eval()
        self._model.generation_config.eos_token_id = None

    @torch.inference_mode()
    def __call__(self, prompt: np.ndarray) -> list[int]:
        ids = torch.from_numpy(prompt)[None]
        answer = self._model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=ANSWER, do_sample=False, pad_token_id=0
        )
        return answer[0, len(prompt) :].tolist()


class OurEngine:
    """Cache and engine as the node runs them: keys, match, begin, steps, commits, finish."""

    def __init__(self, path: Path) -> None:
        source = open_model(path)
        layout = source.shape.layout(as_dtype("float32"), 32)
        slots, boot = 512, new_boot_id()
        remove_dead_segments("bench", boot)  # of runs that were killed
        self.arena = SharedMemoryArena(layout, slots, segment_name("bench", boot, 1))
        self._store = BlockStore(RunAllocator(slots), block_size=32, block_bytes=layout.block_bytes)
        self._loop = EngineLoop(clock=time.perf_counter)
        self._loop.host(b"g", ModelRunner.load(source, self.arena))
        self._number = 0

    def __call__(self, prompt: np.ndarray) -> list[int]:
        chain = self._store.keys(b"r" * 32, prompt.astype("<u4").tobytes(), namespace="bench")
        build = self._store.begin(self._store.match(chain), spare_tokens=ANSWER)
        if isinstance(build, NoRoom):
            raise SystemExit("the bench's pool is too small")
        self._number += 1
        with build:
            self._loop.draw_slots_from(_Extending(build.extend))
            self._loop.add(
                EngineRequest(
                    request_id=str(self._number),
                    generation=b"g",
                    tokens=prompt,
                    computed=build.reused_blocks * 32,
                    slots=list(build.slots),
                    sampling=Sampling(temperature=0.0),
                    max_new_tokens=ANSWER,
                )
            )
            answer: list[int] = []
            while True:
                for event in self._loop.step():
                    match event:
                        case TokenOut():
                            answer.append(event.token_id)
                            build.add_tokens([event.token_id])
                        case BlocksComputed():
                            build.commit(event.upto_block, lambda: True)
                        case Finished():
                            return answer


class _Extending:
    def __init__(self, extend) -> None:  # type: ignore[no-untyped-def]
        self._extend = extend

    def extend(self, _request_id: str, blocks: int) -> list[int] | None:
        taken = self._extend(blocks)
        return None if isinstance(taken, NoRoom) else taken


def overhead_at_zero_hits(path: Path) -> float:
    """Median over pairs of (our time / generate's time) on unshared prompts, alternating who goes first."""
    torch.set_num_threads(THREADS)
    rng = np.random.default_rng(5)
    ours, plain = OurEngine(path), PlainGenerate(path)
    try:
        ratios = []
        for pair in range(PAIRS + 1):
            prompt = rng.integers(100, 40_000, PROMPT)
            times: dict[str, float] = {}
            answers: dict[str, list[int]] = {}
            order = [("ours", ours), ("plain", plain)]
            for name, run in order if pair % 2 else reversed(order):
                begin = time.perf_counter()
                answers[name] = run(prompt)
                times[name] = time.perf_counter() - begin
            if answers["ours"] != answers["plain"]:
                raise SystemExit("greedy answers differ: the bench compares unequal work")
            if pair:  # the first pair warms both up
                ratios.append(times["ours"] / times["plain"])
        return statistics.median(ratios)
    finally:
        ours.arena.close()


def _memory(pid: int) -> dict[str, int]:
    """Bytes by field of /proc/PID/status."""
    fields = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if value.strip().endswith(" kB"):
            fields[name] = int(value.split()[0]) * 1024
    return fields


async def _daemon_memory(path: Path) -> dict[str, int]:
    """Of a daemon that has warmed and answered, by field of /proc/PID/status."""
    with tempfile.TemporaryDirectory() as folder:
        manifests = Path(folder) / "manifests"
        Scene(path, warm=True).write(manifests)
        options = FleetOptions(manifests, Path(folder) / "state", FleetShape(nodes=1, port=0))
        async with Fleet(options) as fleet:
            await fleet.ready(300)
            key = (options.state_dir / "development-key").read_text().strip()
            async with AsyncOpenAI(base_url=fleet.base_url, api_key=key, timeout=300) as client:
                for question in range(4):
                    await client.chat.completions.create(
                        model=NAMESPACE,
                        messages=[{"role": "user", "content": f"Question {question}: may I return a helmet?"}],
                        max_tokens=32,
                        extra_body={"kvgrove": {"prefix": PREFIX}},
                    )
            daemon = next(member for member in fleet.status().members if member.role == "daemon")
            return await asyncio.to_thread(_memory, daemon.pid or 0)


def rss_beside_weights_and_pool_mib(path: Path) -> float:
    memory = asyncio.run(_daemon_memory(path))
    weights = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    # RssShmem is the pool, as far as it was touched; mapped weight files count as weights, not twice.
    return (memory["VmRSS"] - memory["RssShmem"] - weights) / MIB


def engine_figures(model: Path | None) -> dict[str, float]:
    """Both figures, on ``model`` or on the demo's."""
    path = model if model is not None else smollm2.prepare(smollm2.default_cache(), lambda _stage, _fraction: None)
    config = json.loads((path / "config.json").read_text())
    if config.get("vocab_size", 0) < 40_000:
        raise SystemExit("--model: the bench draws token ids up to 40,000; give a model with a larger vocabulary")
    return {
        "overhead_at_zero_hits": overhead_at_zero_hits(path),
        "daemon_rss_minus_weights_pool_mib": rss_beside_weights_and_pool_mib(path),
    }
