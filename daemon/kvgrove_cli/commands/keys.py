"""`kvgrove keys`: the API keys file."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from kvgrove_cli import api_keys
from kvgrove_cli.commands import options
from kvgrove_cli.state_dir import StateDir
from kvgrove_cli.status import columns

_file = click.option(
    "--file",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The keys file; default: the one of the fleet in --state-dir.",
)


@click.group()
def keys() -> None:
    """Create, list, rotate and revoke API keys. Gateways go by the file as it is when a request begins."""


@keys.command()
@click.argument("key_id", metavar="ID")
@click.option("--tenant", required=True, help="Tenant that the key speaks for.")
@click.option("--user", help="User within the tenant.")
@click.option("--scope", "scopes", multiple=True, help="Scope that the key holds; repeatable.")
@click.option("--namespace", "namespaces", multiple=True, help="Limit it to NAMESPACE/NAME; repeatable.")
@click.option("--explain", is_flag=True, help="An operator's: told how its requests are routed, where gateways tell.")
@click.option("--operator", is_flag=True, help="May use /admin and read /metrics.")
@click.option("--monitor", is_flag=True, help="May read /metrics.")
@_file
@options.state_dir
def create(
    *,
    key_id: str,
    tenant: str,
    user: str | None,
    scopes: tuple[str, ...],
    namespaces: tuple[str, ...],
    explain: bool,
    operator: bool,
    monitor: bool,
    file: Path | None,
    state_dir: Path,
) -> None:
    """Create the key ID and print it, this once: only its hash is kept."""
    secret = api_keys.new_secret()
    api_keys.create(
        _path(file, state_dir),
        secret=secret,
        key_id=key_id,
        tenant=tenant,
        user=user,
        scopes=list(scopes),
        namespaces=list(namespaces) or None,
        explain=explain,
        operator=operator,
        monitor=monitor,
    )
    click.echo(secret)


@keys.command("list")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@_file
@options.state_dir
def list_keys(output: str, file: Path | None, state_dir: Path) -> None:
    """List keys by id. Neither keys nor hashes are shown."""
    listed = [key.model_dump(mode="json", exclude={"sha256"}) for key in api_keys.read(_path(file, state_dir))]
    if output == "json":
        click.echo(json.dumps(listed, indent=2))
        return
    rows = [
        (
            key["id"],
            key["tenant"],
            key["user"] or "",
            ",".join(key["scopes"]),
            "all" if key["namespaces"] is None else ",".join(key["namespaces"]),
            ",".join(role for role in ("operator", "monitor", "explain") if key[role]),
            key["expires"] or "",
        )
        for key in listed
    ]
    click.echo(columns(("ID", "TENANT", "USER", "SCOPES", "NAMESPACES", "ROLES", "EXPIRES"), rows))


@keys.command()
@click.argument("key_id", metavar="ID")
@click.option(
    "--grace", type=click.FloatRange(min=0), default=24.0, show_default=True, help="Hours that the old key still works."
)
@_file
@options.state_dir
def rotate(key_id: str, grace: float, file: Path | None, state_dir: Path) -> None:
    """Print a new key for the caller of ID, and let ID end after --grace hours (0: at once)."""
    secret = api_keys.new_secret()
    until = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=grace) if grace else None
    new_id = api_keys.rotate(_path(file, state_dir), key_id, secret=secret, until=until)
    click.echo(f"{new_id}:", err=True)
    click.echo(secret)


@keys.command()
@click.argument("key_id", metavar="ID")
@_file
@options.state_dir
def revoke(key_id: str, file: Path | None, state_dir: Path) -> None:
    """Take the key ID out of the file: it is refused from then on."""
    path = _path(file, state_dir)
    api_keys.revoke(path, key_id)
    click.echo(f"revoked {key_id} in {path}")


def _path(file: Path | None, state_dir: Path) -> Path:
    return file if file is not None else StateDir(state_dir).keys_file
