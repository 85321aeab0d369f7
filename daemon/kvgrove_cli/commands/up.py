"""`kvgrove up`: a fleet on this machine, from a folder of manifests."""

import asyncio
import json
import shlex
import signal
from pathlib import Path

import click

from kvgrove_cli import console, development_key
from kvgrove_cli.commands import options
from kvgrove_cli.errors import UsageProblem
from kvgrove_cli.fleet import Fleet, FleetOptions
from kvgrove_cli.members import FleetShape
from kvgrove_cli.narration import narrated
from kvgrove_cli.state_dir import StateDir
from kvgrove_cli.status import FleetStatus
from kvgrove_gateway.settings import BadSettings, parse_listen

_STARTUP_SECONDS = 900.0
"""Bound of a first start; a model that takes longer to load from local files is taken for stuck."""


@click.command()
@click.option(
    "--manifests", required=True, type=click.Path(path_type=Path), help="Folder with ModelVersions and namespaces."
)
@click.option("--nodes", default=1, show_default=True, help="Node daemons.")
@click.option("--gateways", default=1, show_default=True, help="Gateways, on consecutive ports.")
@click.option("--listen", default="127.0.0.1:8080", show_default=True, help="HOST:PORT of the first gateway; 0: any.")
@click.option(
    "--keys",
    type=click.Path(dir_okay=False, path_type=Path),
    help="API keys file. Without one, a development key is made in the state directory and printed.",
)
@options.state_dir
@click.option("--threads-per-node", type=int, help="Default: the processors, divided among the nodes.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--kv-events", is_flag=True, help="Publish KV events of namespaces that opt in, on Unix sockets.")
@click.option("--plain-links", is_flag=True, help="Links between the processes without keys (CURVE).")
@click.option(
    "--reasons",
    type=click.Choice(["always", "asked", "never"]),
    default="always",
    show_default=True,
    help="Tell callers why tokens were computed.",
)
@click.option("--explain-routes", is_flag=True, help="Tell keys marked `explain` how their requests were routed.")
@click.option("--oidc", type=click.Path(dir_okay=False, path_type=Path), help="OIDC issuers whose tokens are taken.")
@click.option("--rate-limits", type=click.Path(dir_okay=False, path_type=Path), help="Allowances of tenants.")
@click.option("--audit", is_flag=True, help="Gateways write audit logs into the state directory's logs/.")
@click.option(
    "--log-level", type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"]), default="ERROR", show_default=True
)
def up(
    *,
    manifests: Path,
    nodes: int,
    gateways: int,
    listen: str,
    keys: Path | None,
    state_dir: Path,
    threads_per_node: int | None,
    device: str,
    kv_events: bool,
    plain_links: bool,
    reasons: str,
    explain_routes: bool,
    oidc: Path | None,
    rate_limits: Path | None,
    audit: bool,
    log_level: str,
) -> None:
    """Run nodes and gateways for the manifests in a folder, and follow every change of it, until interrupted."""
    console.log_to_stderr(log_level)
    try:
        host, port = parse_listen(listen)
    except BadSettings as error:
        raise UsageProblem(error.message, field=error.field) from None
    shape = FleetShape(
        *(nodes, gateways, host, port, threads_per_node, device),
        kv_events=kv_events,
        plain_links=plain_links,
        reasons=reasons,
        explain_routes=explain_routes,
        oidc=oidc,
        rate_limits=rate_limits,
        audit=audit,
    )
    asyncio.run(_run(FleetOptions(manifests.absolute(), state_dir.absolute(), shape, keys)))


async def _run(fleet_options: FleetOptions) -> None:
    asked_to_stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, asked_to_stop.set)
    stopping = asyncio.create_task(asked_to_stop.wait())
    serving = asyncio.create_task(_serve(fleet_options))
    await asyncio.wait({stopping, serving}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not serving.done():
        click.echo("stopping: requests under way are finished first", err=True)
        serving.cancel()
    await asyncio.gather(serving, return_exceptions=asked_to_stop.is_set())


async def _serve(fleet_options: FleetOptions) -> None:
    async with Fleet(fleet_options) as fleet, narrated(fleet, lambda line: click.echo(line, err=True)):
        current = await fleet.ready(_STARTUP_SECONDS)
        click.echo(_welcome(fleet, current, fleet_options))
        await fleet.failed()


def _welcome(fleet: Fleet, current: FleetStatus, fleet_options: FleetOptions) -> str:
    state_dir = StateDir(fleet_options.state_dir)
    lines = [f"ready: {url}" for url in fleet.base_urls]
    lines += [f"model: {n.name} ({n.model}, generation {n.generation})" for n in current.namespaces]
    for member in current.members:
        if member.kv_events:
            lines.append(f"KV events of {member.name}: {member.kv_events} (replay: {member.kv_events_replay})")
    key, file = "$KVGROVE_API_KEY", state_dir.development_key_file
    if fleet.made_development_key:
        lines.append(f"key:   {file.read_text()} (tenant {development_key.TENANT}; shown once, kept in {file})")
    if fleet_options.keys is None and development_key.usable(state_dir):
        key = f"$(cat {shlex.quote(str(file))})"
    if current.namespaces:
        first = current.namespaces[0]
        lines += [
            "",
            "try:",
            f"  {curl_line(fleet.base_url, key, first.name, next(iter(first.prefixes), None), 'Hello')}",
        ]
    lines += ["", f"state: kvgrove status --state-dir {shlex.quote(str(state_dir.path))}"]
    return "\n".join(lines)


def curl_line(base_url: str, key: str, model: str, prefix: str | None, question: str) -> str:
    """A shell line that asks the first question. ``key`` is put between double quotes as it is."""
    body: dict[str, object] = {
        "model": model,
        "max_tokens": 32,
        "messages": [{"role": "user", "content": question}],
    }
    if prefix is not None:
        body["kvgrove"] = {"prefix": prefix}
    return (
        f'curl -s {base_url}/chat/completions -H "Authorization: Bearer {key}" '
        f"-H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body))}"
    )
