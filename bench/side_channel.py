"""Whether one tenant can tell by time what another has asked (ISO-03).

``python bench/side_channel.py --json [--probes 200]`` starts a node with a tiny model and a gateway as processes. Ann
asks a prompt; then, in an order drawn by lot, Carl, of another tenant, asks the same one and one that nobody has asked,
and Ann asks hers again; and so on, ``probes`` times. Printed are, of the times to the answer at the HTTP socket:

- ``separability``: the probability that a guess is answered sooner than a miss (ties count half), 0.5 if they cannot be
  told apart. Its deviation by chance is ``chance`` = sqrt((2n + 1) / 12) / n; ``separable`` says whether it is further
  than five of those from 0.5. Ranks, so that a busy machine, which slows both, decides nothing.
- ``power``: the same for Ann's own prompts against Carl's misses: what a leak would look like. ``separability`` says
  something only where this is far from 0.5.
- ``median_ms`` of guesses, misses and Ann's own.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

import httpx

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))  # the rig is the tests' own

from fleets import NAMESPACE, running_fleet
from tiny_models import cached_tiny_model

WORDS = 200
"""Of a prompt: long enough that computing it takes most of the time, so that reuse would show."""
LIMIT = 5.0
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def sooner(first: list[float], second: list[float]) -> float:
    """The probability that one of ``first`` is below one of ``second``; Mann and Whitney's U by pairs."""
    pairs = len(first) * len(second)
    return sum((a < b) + (a == b) / 2 for a in first for b in second) / pairs


def chance(n: int) -> float:
    """The standard deviation of `sooner` for two samples of ``n`` from one distribution."""
    return math.sqrt((2 * n + 1) / 12) / n


def figures(probes: int) -> dict[str, object]:
    draw = random.Random(3)

    def secret() -> str:
        return " ".join("".join(draw.choice(LETTERS) for _ in range(7)) for _ in range(WORDS))

    with (
        tempfile.TemporaryDirectory() as folder,
        running_fleet(Path(folder), cached_tiny_model("llama"), nodes=1, gateways=1, lease="30s") as running,
        httpx.Client(base_url=running.fleet.base_url, timeout=120) as client,
    ):

        def took(text: str, who: str) -> float:
            message = {"model": NAMESPACE, "messages": [{"role": "user", "content": text}], "max_tokens": 1}
            began = time.perf_counter()
            answer = client.post(
                "/chat/completions", json=message, headers={"Authorization": f"Bearer {running.keys[who]}"}
            )
            passed = time.perf_counter() - began
            answer.raise_for_status()
            return passed

        times: dict[str, list[float]] = {"guess": [], "miss": [], "own": []}
        for _ in range(probes):
            known, unknown = secret(), secret()
            took(known, "acme")
            order = [("guess", known, "globex"), ("miss", unknown, "globex"), ("own", known, "acme")]
            for kind, text, who in draw.sample(order, len(order)):
                times[kind].append(took(text, who))
    told = sooner(times["guess"], times["miss"])
    return {
        "probes": probes,
        "separability": round(told, 4),
        "chance": round(chance(probes), 4),
        "separable": abs(told - 0.5) > LIMIT * chance(probes),
        "power": round(sooner(times["own"], times["miss"]), 4),
        "median_ms": {kind: round(1000 * statistics.median(each), 2) for kind, each in times.items()},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object (default: a line per figure)")
    parser.add_argument("--probes", type=int, default=200, help="guesses, and as many misses")
    options = parser.parse_args()
    found = figures(options.probes)
    print(
        json.dumps(found, indent=2) if options.json else "\n".join(f"{name}: {value}" for name, value in found.items())
    )
    return int(bool(found["separable"]))


if __name__ == "__main__":
    sys.exit(main())
