"""Eight streamed requests on one node, together and one after another, through the gateway, as JSON.

``python bench/concurrency.py --json`` prints ``together_s``, ``one_after_another_s``, ``speed_up`` (the median of their
ratio, pair by pair), ``requests`` and ``finished`` (whose stream ended with a finish reason and usage that adds up).
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path

from openai import AsyncOpenAI

from kvgrove_cli import smollm2
from kvgrove_cli.demo.stage import NAMESPACE, PREFIX, Scene
from kvgrove_cli.fleet import Fleet, FleetOptions
from kvgrove_cli.members import FleetShape

REQUESTS, ANSWER, PAIRS = 8, 48, 3


async def stream(client: AsyncOpenAI, question: str) -> bool:
    """One streamed answer; whether it ended as it should."""
    finish, usage = None, None
    chunks = await client.chat.completions.create(
        model=NAMESPACE,
        messages=[{"role": "user", "content": question}],
        max_tokens=ANSWER,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"kvgrove": {"prefix": PREFIX}},
    )
    async for chunk in chunks:
        if chunk.choices and chunk.choices[0].finish_reason:
            finish = chunk.choices[0].finish_reason
        usage = chunk.usage or usage
    return (
        finish in ("stop", "length")
        and usage is not None
        and usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    )


async def measure(model: Path) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        manifests = Path(folder) / "manifests"
        Scene(model, warm=True).write(manifests)
        options = FleetOptions(manifests, Path(folder) / "state", FleetShape(nodes=1))
        async with Fleet(options) as fleet:
            await fleet.ready(300)
            key = (options.state_dir / "development-key").read_text().strip()
            async with AsyncOpenAI(base_url=fleet.base_url, api_key=key, timeout=300) as client:
                await stream(client, "Hello?")  # what is lazy is loaded now
                together, apart, finished = [], [], 0
                for pair in range(PAIRS):
                    questions = [f"Question {pair}-{n}: may I return a helmet?" for n in range(REQUESTS)]
                    begin = time.perf_counter()
                    ended = await asyncio.gather(*(stream(client, f"{question} (together)") for question in questions))
                    together.append(time.perf_counter() - begin)
                    begin = time.perf_counter()
                    ended += [await stream(client, f"{question} (apart)") for question in questions]
                    apart.append(time.perf_counter() - begin)
                    finished += sum(ended)
    return {
        "together_s": statistics.median(together),
        "one_after_another_s": statistics.median(apart),
        "speed_up": statistics.median(a / t for a, t in zip(apart, together, strict=True)),
        "requests": 2 * REQUESTS * PAIRS,
        "finished": finished,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object (default: a line per figure)")
    parser.add_argument("--model", type=Path, default=None, help="model directory (default: the demo's)")
    arguments = parser.parse_args()
    model = arguments.model or smollm2.prepare(smollm2.default_cache(), lambda _stage, _fraction: None)
    figures = asyncio.run(measure(model))
    if arguments.json:
        print(json.dumps({name: round(value, 3) for name, value in figures.items()}, indent=2))
    else:
        for name, value in figures.items():
            print(f"{name:24} {value:.3f}")


if __name__ == "__main__":
    main()
