"""An engine loop over a tiny model, its slots and its events: what tests of the loop need around it."""

from __future__ import annotations

import itertools
import os
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from kvgrove_daemon.cache.arena import SharedMemoryArena
from kvgrove_daemon.cache.runs import RunAllocator
from kvgrove_daemon.cache.segments import segment_name
from kvgrove_daemon.engine.loop import EngineEvent, EngineLoop, EngineRequest, TokenOut
from kvgrove_daemon.engine.model_source import open_model
from kvgrove_daemon.engine.runner import ModelRunner
from kvgrove_daemon.engine.scheduler import StepLimits
from kvgrove_protocol.data import Sampling

GENERATION = b"g" * 32
GREEDY = Sampling(temperature=0.0)
_numbers = itertools.count()


class EngineRig:
    """Also the loop's `SlotSource`: it gives slots while ``room`` lasts."""

    def __init__(
        self,
        directory: Path,
        *,
        limits: StepLimits | None = None,
        dtype: str = "float32",
        block_size: int = 16,
        num_slots: int = 128,
        clock: Callable[[], float] = lambda: 0.0,
        max_requests: int = 64,
    ) -> None:
        self.source = open_model(directory)
        layout = self.source.shape.layout(dtype, block_size)
        self.arena = SharedMemoryArena(layout, num_slots, segment_name(f"loop{os.getpid()}", "0", next(_numbers)))
        self.runner = ModelRunner.load(self.source, self.arena)
        self.loop = EngineLoop(clock=clock, entropy=lambda: 5, max_requests=max_requests)
        self.loop.host(GENERATION, self.runner, limits)
        self.loop.draw_slots_from(self)
        self.runs = RunAllocator(num_slots)
        self.room = True
        self.asked: list[tuple[str, int]] = []
        self.block_size = block_size
        self.events: dict[str, list[EngineEvent]] = defaultdict(list)
        self._random = np.random.default_rng(3)

    def close(self) -> None:
        self.arena.close()

    def tokens(self, count: int) -> np.ndarray:
        return self._random.integers(3, self.runner.shape.vocab_size, count)

    def slots(self, tokens: int) -> list[int]:
        runs = self.runs.allocate(-(-tokens // self.block_size))
        assert runs is not None, "the rig's pool is too small for this test"
        return [slot for run in runs for slot in run.slots()]

    def extend(self, request_id: str, blocks: int) -> list[int] | None:
        self.asked.append((request_id, blocks))
        runs = self.runs.allocate(blocks) if self.room else None
        return [slot for run in runs for slot in run.slots()] if runs is not None else None

    def request(
        self,
        request_id: str,
        tokens: np.ndarray,
        *,
        new: int = 8,
        sampling: Sampling = GREEDY,
        stop: frozenset[int] = frozenset(),
        computed: int = 0,
        slots: list[int] | None = None,
    ) -> EngineRequest:
        return EngineRequest(
            request_id=request_id,
            generation=GENERATION,
            tokens=tokens,
            computed=computed,
            slots=self.slots(len(tokens)) if slots is None else slots,
            sampling=sampling,
            max_new_tokens=new,
            stop_token_ids=stop,
        )

    def step(self) -> list[EngineEvent]:
        events = self.loop.step()
        for event in events:
            self.events[event.request_id].append(event)
        return events

    def drain(self, limit: int = 500) -> None:
        for _ in range(limit):
            if not self.loop.has_work:
                return
            self.step()
        raise AssertionError(f"still work after {limit} steps")

    def answer(self, request_id: str) -> list[int]:
        return [event.token_id for event in self.events[request_id] if isinstance(event, TokenOut)]

    def plain_answer(self, tokens: np.ndarray, new: int) -> list[int]:
        """What the plain model generates greedily, cold, with no cache of ours."""
        model = AutoModelForCausalLM.from_pretrained(
            self.source.path, dtype=self.arena.pool.dtype, local_files_only=True
        ).eval()
        known = torch.from_numpy(tokens)[None]
        with torch.inference_mode():
            for _ in range(new):
                known = torch.cat([known, model(known).logits[:, -1:].argmax(-1)], dim=1)
        return known[0, len(tokens) :].tolist()
