"""`kvgrove savings`."""

from pathlib import Path

import click
import msgspec

from kvgrove_cli.commands import options
from kvgrove_cli.errors import FleetProblem
from kvgrove_cli.savings.report import as_table, savings_of
from kvgrove_cli.savings.scrape import add_up, read
from kvgrove_cli.state_dir import StateDir
from kvgrove_cli.status import read as read_status
from kvgrove_protocol.control import GATEWAY

_JSON = msgspec.json.Encoder(decimal_format="number")


@click.command()
@click.argument("sources", metavar="[SOURCE]...", nargs=-1)
@options.state_dir
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@options.api_key
def savings(sources: tuple[str, ...], state_dir: Path, output: str, key: str | None) -> None:
    """Show what reuse saved: tokens, GPU seconds and money by `spec.pricing`.

    SOURCE is the address of a gateway or of a node's metrics, or a file with a scrape of one. Without any, the gateways
    and nodes of the fleet in --state-dir are asked. Gateways answer monitors and operators. Counters begin with the
    process: for a span of time, subtract an earlier scrape, or ask Prometheus.
    """
    used = options.key_for(key, state_dir)
    found = savings_of(add_up((source, read(source, used)) for source in sources or _of_fleet(state_dir)))
    if not found:
        raise FleetProblem("no answered request is counted there: give the gateways' metrics")
    if output == "json":
        click.echo(msgspec.json.format(_JSON.encode(found)).decode())
    else:
        click.echo(as_table(found))


def _of_fleet(state_dir: Path) -> list[str]:
    members = read_status(StateDir(state_dir).status_file).members
    gateways = [each.address for each in members if each.role == GATEWAY and each.address]
    return gateways + [each.metrics for each in members if each.metrics]
