"""`kvgrove simulate`."""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import msgspec

from kvgrove_cli.commands.trace import capacity_blocks
from kvgrove_cli.errors import UsageProblem
from kvgrove_cli.simulate import plot as picture
from kvgrove_cli.simulate.policies import MAKERS, OURS
from kvgrove_cli.simulate.report import Course, Row, course, figures, row
from kvgrove_cli.simulate.run import Fleet, Result, Simulation, Trouble
from kvgrove_cli.simulate.workload import LOAD, Arrival, prefill_rate, read_arrivals, workload
from kvgrove_cli.status import columns
from kvgrove_cli.trace.formats import read_trace
from kvgrove_cli.trace.pool import MAX_BLOCKS
from kvgrove_daemon.cache.eviction import POLICIES

ALL = "all"
_WHEN = "seconds since the first arrival, or a share of the trace, as 50%"


@click.command()
@click.argument("traces", metavar="TRACE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--nodes", type=click.IntRange(1, 1024), default=8, show_default=True)
@click.option("--policy", type=click.Choice([*MAKERS, ALL]), default=OURS, show_default=True)
@click.option(
    "--split", default="20%", show_default=True, help="Capacity of all nodes: share of the unique blocks, or blocks."
)
@click.option("--eviction", type=click.Choice(sorted(POLICIES)), default="cost-aware", show_default=True)
@click.option(
    "--load",
    type=click.FloatRange(0, min_open=True),
    default=LOAD,
    show_default=True,
    help="How busy the nodes would be if nothing were reused: sets their prefill rate.",
)
@click.option("--seed", "seeds", type=int, multiple=True, default=(1,), show_default=True, help="Repeat it for a mean.")
@click.option("--arrivals", type=click.Path(path_type=Path), help="CSV whose TIMESTAMPs replace the arrival times.")
@click.option("--restart-node", metavar="T", help=f"One node restarts, empty: {_WHEN}.")
@click.option("--restart-gateway", metavar="T", help="The gateway restarts, and knows nothing: T as above.")
@click.option("--rollout", metavar="T", help="From then on all keys are new: T as above.")
@click.option(
    "--lose-evictions", type=click.FloatRange(0, 1), default=0.0, help="Share of eviction events lost, unnoticed."
)
@click.option(
    "--plot", type=click.Path(path_type=Path), help="Draw hits, imbalance and waiting over time (.svg, .png)."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: an object, or a list where there are several rows.")
def simulate(
    *,
    traces: tuple[Path, ...],
    nodes: int,
    policy: str,
    split: str,
    eviction: str,
    load: float,
    seeds: tuple[int, ...],
    arrivals: Path | None,
    restart_node: str | None,
    restart_gateway: str | None,
    rollout: str | None,
    lose_evictions: float,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Route each TRACE with the gateway's own router over simulated nodes.

    Index, decision, residency stream, cache and eviction are the real ones; bytes and time are simulated. A node
    computes one prompt after the other at a steady rate. TRACE is a Mooncake trace or a file of coding sessions.
    """
    if plot is not None:
        picture.check(plot)
    terms = _Terms(
        nodes=nodes,
        split=split,
        eviction=eviction,
        load=load,
        times=None if arrivals is None else read_arrivals(arrivals),
        rollout=rollout,
        restart_node=restart_node,
        restart_gateway=restart_gateway,
        lose_evictions=lose_evictions,
    )
    rows: list[Row] = []
    courses: dict[str, Course] = {}
    for path in traces:
        stages = [_stage(path, seed, terms) for seed in seeds]
        for name in MAKERS if policy == ALL else (policy,):
            results = [_watched(stage, name) for stage in stages]
            runs = [figures(result.requests, nodes, stage.seed) for stage, result in zip(stages, results, strict=True)]
            rows.append(row(path.name, name, [stage.fleet for stage in stages], results, runs))
            if plot is not None:
                label = name if len(traces) == 1 else f"{path.stem}: {name}"
                courses[label] = course(results[0].requests, nodes)
    if plot is not None:
        picture.draw(plot, courses, f"{nodes} nodes, {split} split, {eviction}, seed {seeds[0]}")
    if as_json:
        printed: Row | list[Row] = rows[0] if len(rows) == 1 else rows
        click.echo(msgspec.json.format(msgspec.json.encode(printed), indent=2))
    else:
        click.echo(_table(rows))


@dataclass(frozen=True, slots=True)
class _Terms:
    """The options that hold for every trace and seed."""

    nodes: int
    split: str
    eviction: str
    load: float
    times: Sequence[float] | None
    rollout: str | None
    restart_node: str | None
    restart_gateway: str | None
    lose_evictions: float


@dataclass(frozen=True, slots=True)
class _Stage:
    """What is the same for every policy."""

    arriving: Sequence[Arrival]
    fleet: Fleet
    trouble: Trouble
    seed: int


def _stage(path: Path, seed: int, terms: _Terms) -> _Stage:
    """Raises UsageProblem."""
    trace = read_trace(path, seed=seed)
    if not 0 < trace.unique_blocks <= MAX_BLOCKS:
        raise UsageProblem(
            f"TRACE: {path}: {trace.unique_blocks} unique blocks; from 1 to {MAX_BLOCKS} can be simulated"
        )
    span = (trace.requests[-1].at_ms - trace.requests[0].at_ms) / 1e3
    slots = capacity_blocks(terms.split, trace.unique_blocks, terms.nodes, option="--split") // terms.nodes
    trouble = Trouble(
        restart_node_s=_when("--restart-node", terms.restart_node, span),
        restart_gateway_s=_when("--restart-gateway", terms.restart_gateway, span),
        lose_evictions=terms.lose_evictions,
    )
    arriving = workload(trace, terms.times, rollout_s=_when("--rollout", terms.rollout, span))
    fleet = Fleet(terms.nodes, slots, prefill_rate(trace, terms.nodes, terms.load), terms.eviction)
    return _Stage(arriving, fleet, trouble, seed)


def _watched(stage: _Stage, policy: str) -> Result:
    simulation = Simulation(stage.fleet, policy, stage.trouble, seed=stage.seed)
    hidden = not sys.stderr.isatty()
    with click.progressbar(
        stage.arriving, label=f"{policy}, seed {stage.seed}", file=sys.stderr, hidden=hidden
    ) as passing:
        return simulation.run(passing)


def _when(option: str, text: str | None, span_s: float) -> float | None:
    """Seconds. Raises UsageProblem."""
    if text is None:
        return None
    if not re.fullmatch(r"\d{1,9}(\.\d{1,9})?%?", text, re.ASCII):
        raise UsageProblem(f"{option}: {text!r} is neither seconds nor a share of the trace; try 50%", field=option)
    at = float(text[:-1]) / 100 * span_s if text.endswith("%") else float(text)
    if at > span_s:
        raise UsageProblem(f"{option}: {text} is after the last arrival ({span_s:.0f} s); give less", field=option)
    return at


def _table(rows: Sequence[Row]) -> str:
    head = ("TRACE", "POLICY", "TOKEN HITS", "IMBALANCE", "WAIT P95", "TTFT P95")
    return columns(
        head,
        [
            (
                each.trace,
                each.policy,
                f"{each.token_hit_ratio:.4f}",
                f"{each.imbalance:.3f}",
                f"{each.wait_p95_s:.2f} s",
                f"{each.ttft_p95_s:.2f} s",
            )
            for each in rows
        ],
    )
