"""`kvgrove status`: of the fleet on this machine, or of one on Kubernetes."""

import time
from pathlib import Path

import click
import msgspec

from kvgrove_cli.commands import cluster, options
from kvgrove_cli.errors import FleetProblem
from kvgrove_cli.state_dir import StateDir
from kvgrove_cli.status import FleetStatus, as_table, read

_WATCH_SECONDS = 1.0


@click.command()
@options.state_dir
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.option("--watch", is_flag=True, help="Print it again whenever it changes, until interrupted.")
@cluster.cluster_options
@click.pass_context
def status(click_context: click.Context, /, state_dir: Path, output: str, watch: bool, **of: cluster.Options) -> None:
    """Show namespaces, models and members of the fleet that `kvgrove up` runs.

    With --kubeconfig or --context: namespaces of that cluster (all that `kubectl kvgrove status` can show).
    """
    if any(of.values()):
        click_context.invoke(
            cluster.status, name=None, namespace=None, all_namespaces=True, output=output, watch=watch, **of
        )
        return
    directory = StateDir(state_dir)
    shown: FleetStatus | None = None
    while True:
        current = read(directory.status_file)
        if not directory.in_use():
            raise FleetProblem(f"{state_dir}: no fleet is running; start one with `kvgrove up`", code="not_running")
        if current != shown:
            text = as_table(current) if output == "table" else msgspec.json.encode(current).decode()
            click.echo(text if shown is None else f"\n{text}")
            shown = current
        if not watch:
            return
        time.sleep(_WATCH_SECONDS)
