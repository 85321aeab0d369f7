"""`rollout`: how far a generation is, and what steers it. Each subcommand that steers is one edit of the spec."""

import json

import click

from kvgrove_cli.cluster import edits, tables
from kvgrove_cli.cluster.api import MODELS, NAMESPACES, ClusterApi, Object
from kvgrove_cli.cluster.printing import changes, end_line, full_name, redraw
from kvgrove_cli.commands.cluster import Options, cluster_options, namespace_option, output_option
from kvgrove_cli.errors import FleetProblem


@click.group()
def rollout() -> None:
    """Look at a rollout, and steer it by edits of the spec."""


@rollout.command("status")
@click.argument("name")
@namespace_option
@click.option("-w", "--watch/--no-watch", default=True, help="Until it has ended (default: watch).")
@cluster_options
def rollout_status(name: str, namespace: str | None, watch: bool, **of: Options) -> None:
    """Show how far a rollout is. Exit code 1: it was rolled back, or is stalled."""
    api = ClusterApi(**of)
    for found in changes(lambda: [api.get(NAMESPACES, namespace or api.namespace, name)], watch=watch):
        held = found[0]
        redraw(tables.progress(held))
        ended = _ending(held)
        if ended is not None:
            end_line()
            if not ended:
                stalled = tables.condition(held, "Stalled").get("message", "")
                raise FleetProblem(f"{full_name(held)} {tables.rollout(held)}: {stalled}")
            click.echo(f"{full_name(held)} successfully rolled out")
            return
    end_line()


@rollout.command()
@click.argument("name")
@namespace_option
@output_option
@cluster_options
def history(name: str, namespace: str | None, output: str, **of: Options) -> None:
    """Show the generations that a namespace has, had, and is to have."""
    api = ClusterApi(**of)
    rows = edits.history(api.get(NAMESPACES, namespace or api.namespace, name), api.list(MODELS))
    if output == "json":
        keys = ("role", "generation", "modelVersion")
        click.echo(json.dumps([dict(zip(keys, row, strict=True)) for row in rows], indent=4))
    else:
        click.echo(tables.table(["ROLE", "GENERATION", "MODEL VERSION"], rows))


@rollout.command()
@click.argument("name")
@namespace_option
@cluster_options
def approve(name: str, namespace: str | None, **of: Options) -> None:
    """Let the generation that waits take traffic."""
    api = ClusterApi(**of)
    held = api.get(NAMESPACES, namespace or api.namespace, name)
    _edit(api, held, edits.approve(held), "approved")


@rollout.command()
@click.argument("name")
@namespace_option
@cluster_options
def pause(name: str, namespace: str | None, **of: Options) -> None:
    """Stop at this step. Requests are answered without the cache until `resume`."""
    api = ClusterApi(**of)
    held = api.get(NAMESPACES, namespace or api.namespace, name)
    _edit(api, held, edits.suspend(held, suspended=True), "paused")


@rollout.command()
@click.argument("name")
@namespace_option
@cluster_options
def resume(name: str, namespace: str | None, **of: Options) -> None:
    """Go on from the step at which it was paused."""
    api = ClusterApi(**of)
    held = api.get(NAMESPACES, namespace or api.namespace, name)
    _edit(api, held, edits.suspend(held, suspended=False), "resumed")


@rollout.command()
@click.argument("name")
@click.option("--to", metavar="MODELVERSION", help="Which one (default: the one that answered before).")
@namespace_option
@cluster_options
def undo(name: str, to: str | None, namespace: str | None, **of: Options) -> None:
    """Go back to the ModelVersion before."""
    api = ClusterApi(**of)
    held = api.get(NAMESPACES, namespace or api.namespace, name)
    _edit(api, held, edits.undo(held, api.list(MODELS), to), "rolled back")


def _edit(api: ClusterApi, held: Object, spec: Object, done: str) -> None:
    click.echo(f"{full_name(api.edit(NAMESPACES, held, spec))} {done}")


def _ending(held: Object) -> bool | None:
    """Whether it went well; None: it is under way."""
    if tables.is_current(held, "Promoted"):
        return True
    stalled = tables.is_current(held, "Stalled")
    return False if stalled or held.get("status", {}).get("rollout", {}).get("phase") == "RolledBack" else None
