"""`kvgrove trace`."""

import math
import re
import sys
from fractions import Fraction
from pathlib import Path

import click
import msgspec

from kvgrove_cli.errors import UsageProblem
from kvgrove_cli.simulate.workload import workload
from kvgrove_cli.status import columns
from kvgrove_cli.trace.formats import read_trace
from kvgrove_cli.trace.pool import MAX_BLOCKS
from kvgrove_cli.trace.replay import Outcome
from kvgrove_cli.trace.replay import replay as run_replay
from kvgrove_daemon.cache.eviction import POLICIES


@click.group()
def trace() -> None:
    """Judge eviction by public request traces."""


@trace.command()
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--policy", type=click.Choice(sorted(POLICIES)), default="cost-aware", show_default=True)
@click.option("--capacity", default="10%", show_default=True, help="Share of the trace's unique blocks, or blocks.")
@click.option("--nodes", type=click.IntRange(1, 1024), default=1, show_default=True, help="They share the capacity.")
@click.option("--seed", default=1, show_default=True, help="Of the interleaving of coding sessions.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
def replay(*, file: Path, policy: str, capacity: str, nodes: int, seed: int, as_json: bool) -> None:
    """Replay FILE through the real index and eviction policy, with simulated bytes.

    FILE is a Mooncake trace or a file of coding sessions, one JSON object per line. With several nodes, requests
    are placed as `kvgrove simulate` does by default, and the figures are the same.
    """
    loaded = read_trace(file, seed=seed)
    if not 0 < loaded.unique_blocks <= MAX_BLOCKS:
        raise UsageProblem(f"FILE: {loaded.unique_blocks} unique blocks; from 1 to {MAX_BLOCKS} can be replayed")
    blocks = capacity_blocks(capacity, loaded.unique_blocks, nodes)
    with click.progressbar(
        workload(loaded), label=f"{policy}, {blocks} blocks", file=sys.stderr, hidden=not sys.stderr.isatty()
    ) as passing:
        outcome = run_replay(loaded, policy=policy, capacity_blocks=blocks, nodes=nodes, arrivals=passing)
    click.echo(msgspec.json.format(msgspec.json.encode(outcome), indent=2) if as_json else _table(outcome))


def capacity_blocks(text: str, unique_blocks: int, nodes: int, *, option: str = "--capacity") -> int:
    """Blocks that ``text`` stands for: at least one for each node. Raises UsageProblem."""
    problem = f"{option}: {text!r} is not above 0% and up to 100%, nor a number of blocks; try 10%"
    if re.fullmatch(r"\d{1,12}(\.\d{1,12})?%", text, re.ASCII):
        share = Fraction(text[:-1]) / 100
        if not 0 < share <= 1:
            raise UsageProblem(problem, field=option)
        blocks = math.floor(share * unique_blocks + Fraction(1, 2))
    elif re.fullmatch(r"\d{1,12}", text, re.ASCII) and int(text) > 0:
        blocks = min(int(text), unique_blocks * nodes)  # more would lie idle
    else:
        raise UsageProblem(problem, field=option)
    if blocks < nodes:
        raise UsageProblem(
            f"{option}: {text} of {unique_blocks} blocks is less than one for each of {nodes} nodes; give more",
            field=option,
        )
    return blocks


def _table(outcome: Outcome) -> str:
    rows = [
        (name.replace("_", " "), f"{value:.4f}" if isinstance(value, float) else str(value))
        for name, value in msgspec.structs.asdict(outcome).items()
    ]
    return columns(("FIGURE", "VALUE"), rows)
