"""`status`, `nodes` and `purge` of a fleet on Kubernetes: also what `kubectl kvgrove` does."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from kvgrove_cli.cluster import edits, tables
from kvgrove_cli.cluster.api import NAMESPACES, NODES, ClusterApi, Object
from kvgrove_cli.cluster.printing import WATCH_SECONDS, full_name, show_objects
from kvgrove_cli.errors import FleetProblem

Options = Any


def cluster_options(command: Callable[..., None]) -> Callable[..., None]:
    """Which cluster, as kubectl is told."""
    command = click.option("--context", help="Context of the kubeconfig (default: its current one).")(command)
    return click.option(
        "--kubeconfig",
        type=click.Path(dir_okay=False, path_type=Path),
        help="File to use (default: as kubectl, from KUBECONFIG or ~/.kube/config).",
    )(command)


namespace_option = click.option("-n", "--namespace", help="Kubernetes namespace (default: the context's).")
output_option = click.option("-o", "--output", type=click.Choice(["table", "json", "name"]), default="table")
_watch = click.option("-w", "--watch", is_flag=True, help="Go on, and print what changes, until interrupted.")


@click.command()
@click.argument("name", required=False)
@namespace_option
@click.option("-A", "--all-namespaces", is_flag=True)
@output_option
@_watch
@cluster_options
def status(
    name: str | None, namespace: str | None, all_namespaces: bool, output: str, watch: bool, **of: Options
) -> None:
    """Show prompt cache namespaces, or one of them with all its conditions."""
    api = ClusterApi(**of)
    where = None if all_namespaces else namespace or api.namespace
    if name is not None and where is None:
        raise click.UsageError("a name is of one Kubernetes namespace: give -n instead of -A")

    def look() -> list[Object]:
        return [api.get(NAMESPACES, where or "", name)] if name is not None else api.list(NAMESPACES, where)

    def show(found: list[Object]) -> str:
        now = datetime.now(UTC)
        return (
            tables.details(found[0], now) if name is not None else tables.namespaces(found, now, all_of_them=not where)
        )

    line = (lambda found: tables.progress(found[0])) if name is not None else None
    show_objects(look, output, show, watch=watch, line=line)


@click.command()
@output_option
@_watch
@cluster_options
def nodes(output: str, watch: bool, **of: Options) -> None:
    """Show the members of the fleet: what each holds and has acknowledged."""
    api = ClusterApi(**of)
    show_objects(lambda: api.list(NODES), output, lambda found: tables.nodes(found, datetime.now(UTC)), watch=watch)


@click.command()
@click.argument("name")
@namespace_option
@click.option("--wait/--no-wait", default=True, help="Until every member has confirmed it (default: wait).")
@click.option("--timeout", type=float, default=300.0, show_default=True, metavar="SECONDS")
@cluster_options
def purge(name: str, namespace: str | None, wait: bool, timeout: float, **of: Options) -> None:
    """Invalidate all that a namespace has cached: raises spec.purge.epoch."""
    api = ClusterApi(**of)
    held = api.get(NAMESPACES, namespace or api.namespace, name)
    done = api.edit(NAMESPACES, held, edits.purge(held))
    click.echo(f"{full_name(done)} purged, epoch {done['spec']['purge']['epoch']}")
    deadline = time.monotonic() + timeout
    while wait:
        held = api.get(NAMESPACES, held["metadata"]["namespace"], name)
        counts = held.get("status", {}).get("invalidation", {})
        if tables.is_current(held, "InvalidationComplete"):
            click.echo(", ".join(f"{counts.get(each, 0)} {each}" for each in ("confirmed", "expired", "gone")))
            return
        if time.monotonic() > deadline:
            message = tables.condition(held, "InvalidationComplete").get("message", "")
            raise FleetProblem(f"not confirmed by all within {timeout:g} s: {message}")
        time.sleep(WATCH_SECONDS)
