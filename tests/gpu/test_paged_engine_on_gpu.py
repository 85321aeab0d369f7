"""The paged engine over GPU memory: logits of reused prefixes equal those of the plain model without any cache."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import exactness
import pytest
import torch

from kvgrove_daemon.cache.arena import CupyArena


@pytest.mark.parametrize("fragmented", [False, True])
def test_reuse_on_the_gpu_is_the_cold_run_on_the_host(
    tiny_model: Callable[[str], Path], fragmented: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exactness, "SharedMemoryArena", lambda layout, slots, _name: CupyArena(layout, slots))
    # Full precision: TensorFloat-32 would hide an error of the size that is looked for.
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    rig = exactness.Rig(tiny_model("llama"), "float32")
    rig.model.to("cuda")
    prompts = [rig.prompt(100, 64), rig.prompt(37, 16), rig.prompt(50)]
    for prompt, logits in zip(prompts, rig.reuse(prompts, fragmented=fragmented), strict=True):
        check = exactness.Check.absolute(logits.cpu(), rig.cold(prompt), 1e-3)
        assert check.passed, check.detail
    rig.close()
