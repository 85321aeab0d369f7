"""`kvgrove status`."""

import time
from pathlib import Path

import click
import msgspec

from kvgrove_cli.commands import options
from kvgrove_cli.errors import FleetProblem
from kvgrove_cli.state_dir import StateDir
from kvgrove_cli.status import FleetStatus, as_table, read

_WATCH_SECONDS = 1.0


@click.command()
@options.state_dir
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.option("--watch", is_flag=True, help="Print it again whenever it changes, until interrupted.")
def status(state_dir: Path, output: str, watch: bool) -> None:
    """Show namespaces, models and members of the fleet that `kvgrove up` runs."""
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
