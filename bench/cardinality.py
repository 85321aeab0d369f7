"""How many series a fleet's scrapes have after many requests of many tenants, as JSON.

``python bench/cardinality.py --json`` sends ``requests`` (10,000) of ``tenants`` (500), one in ten of them refused, to
one gateway and one node with a tiny random model, and prints ``series_gateway`` and ``series_node`` at the end,
``series_early`` after the first 500 requests, ``bound`` (of one process with one namespace, docs/metrics.md) and
``values_of_callers``: label values in which a tenant, a user, a key or a text of the requests was found (0).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from fleets import NAMESPACE, RunningFleet, running_fleet
from tiny_models import cached_tiny_model

from kvgrove_cli.metrics_reference import SERIES_OF_A_NAMESPACE, SERIES_OF_A_PROCESS

AT_ONCE = 16
EARLY = 500
MARK = "zanzibar"
"""In every name and text of a caller."""


def series(text: str) -> list[dict[str, str]]:
    return [sample.labels for family in text_string_to_metric_families(text) for sample in family.samples]


async def ask(client: httpx.AsyncClient, key: str, number: int) -> None:
    body: dict[str, object] = {
        "model": NAMESPACE if number % 10 else f"shop/{MARK}-{number}",
        "messages": [{"role": "user", "content": f"{MARK} {number}"}],
        "max_tokens": 1,
        "user": f"{MARK}-{number}",
    }
    await client.post("/chat/completions", json=body, headers={"Authorization": f"Bearer {key}"})


async def load(running: RunningFleet, keys: list[str], numbers: range, seed: int) -> None:
    chosen, turns = random.Random(seed), asyncio.Semaphore(AT_ONCE)
    async with httpx.AsyncClient(base_url=running.fleet.base_url, timeout=120) as client:

        async def one(number: int) -> None:
            async with turns:
                await ask(client, chosen.choice(keys), number)

        await asyncio.gather(*(one(number) for number in numbers))


def scrapes(running: RunningFleet) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    operator = {"Authorization": f"Bearer {running.keys['watch']}"}
    gateway = httpx.get(running.fleet.base_url.removesuffix("/v1") + "/metrics", headers=operator, timeout=30)
    (node,) = [member.metrics for member in running.fleet.status().members if member.metrics]
    return series(gateway.raise_for_status().text), series(httpx.get(node, timeout=30).raise_for_status().text)


def measure(requests: int, tenants: int) -> dict[str, int]:
    callers = {f"{MARK}-{number}": {"tenant": f"{MARK}-tenant-{number}"} for number in range(tenants)}
    with (
        tempfile.TemporaryDirectory() as folder,
        running_fleet(
            Path(folder),
            cached_tiny_model("llama"),
            nodes=1,
            gateways=1,
            more_keys={**callers, "watch": {"tenant": "watch", "monitor": True}},
        ) as running,
    ):
        keys = [running.keys[name] for name in callers]
        asyncio.run(load(running, keys, range(min(EARLY, requests)), 1))
        early = sum(map(len, scrapes(running)))
        asyncio.run(load(running, keys, range(EARLY, requests), 2))
        gateway, node = scrapes(running)
    values = [value for labels in (*gateway, *node) for value in labels.values()]
    return {
        "requests": requests,
        "tenants": tenants,
        "series_early": early,
        "series_gateway": len(gateway),
        "series_node": len(node),
        "bound": SERIES_OF_A_PROCESS + SERIES_OF_A_NAMESPACE,
        "values_of_callers": sum(MARK in value for value in values),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object (default: a line per figure)")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--tenants", type=int, default=500)
    arguments = parser.parse_args()
    figures = measure(arguments.requests, arguments.tenants)
    print(json.dumps(figures) if arguments.json else "\n".join(f"{name:20} {value}" for name, value in figures.items()))


if __name__ == "__main__":
    main()
