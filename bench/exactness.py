"""How far logits after reuse are from a cold run of the plain model, as JSON.

``python bench/exactness.py --json`` prints, for each family's tiny model and for SmolLM2, in fp32 ``worst_fp32`` (the
largest absolute difference; goal 1e-5, for SmolLM2 2e-4) and ``argmax_equal``. In bf16, for the tiny models, it prints
the distance from an fp32 cold run over that of the plain bf16 run: ``worst_bf16_ratio`` (Euclidean, goal 1.5) and
``worst_bf16_ratio_max_norm``. Each is the worst over prefixes of one block, an odd number of blocks and all but one
token, in one piece and in fragments, among neighbours of other lengths.
"""

import argparse
import json
import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the daemon; before torch loads OpenMP
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))  # the rig is the tests' own

from exactness import Rig
from tiny_models import cached_tiny_model

from kvgrove_cli import smollm2
from kvgrove_daemon.engine.families import SUPPORTED


def prompts(rig: Rig) -> list[list]:  # type: ignore[type-arg]
    size = rig.block_size
    cases = [(size, 5 * size + 7), (5 * size, 6 * size + 5), (5 * size, 5 * size + 1)]
    return [
        [rig.prompt(23), rig.prompt(length, reused), rig.prompt(3 * size + 5, reused=2 * size)]
        for reused, length in cases
    ]


def fp32(model: Path) -> dict[str, float | bool]:
    rig = Rig(model, "float32")
    worst, same = 0.0, True
    try:
        for fragmented in (False, True):
            for batch in prompts(rig):
                for prompt, ours in zip(batch, rig.reuse(batch, fragmented=fragmented), strict=True):
                    cold = rig.cold(prompt)
                    worst = max(worst, (ours - cold).abs().max().item())
                    same = same and bool((ours.argmax(-1) == cold.argmax(-1)).all())
    finally:
        rig.close()
    return {"worst_fp32": worst, "argmax_equal": same}


def bf16(model: Path) -> dict[str, float | bool]:
    rig = Rig(model, "bfloat16")
    euclidean = largest = 0.0
    try:
        for fragmented in (False, True):
            for batch in prompts(rig):
                for prompt, ours in zip(batch, rig.reuse(batch, fragmented=fragmented), strict=True):
                    exact = rig.cold(prompt, fp32=True)
                    mine, plain = ours.float() - exact, rig.cold(prompt).float() - exact
                    euclidean = max(euclidean, (mine.norm() / plain.norm()).item())
                    largest = max(largest, (mine.abs().max() / plain.abs().max()).item())
    finally:
        rig.close()
    return {"worst_bf16_ratio": euclidean, "worst_bf16_ratio_max_norm": largest}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object (default: a line per model)")
    arguments = parser.parse_args()
    figures = {family: fp32(path) | bf16(path) for family in SUPPORTED if (path := cached_tiny_model(family))}
    figures["SmolLM2"] = fp32(smollm2.prepare(smollm2.default_cache(), lambda _stage, _fraction: None))
    if arguments.json:
        print(json.dumps(figures, indent=2))
    else:
        for name, values in figures.items():
            print(f"{name:10}", "  ".join(f"{key} {value:.3g}" for key, value in values.items()))


if __name__ == "__main__":
    main()
