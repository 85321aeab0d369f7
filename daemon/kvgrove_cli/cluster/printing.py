"""Objects on a terminal: once, or again and again for as long as somebody watches."""

import json
import sys
import time
from collections.abc import Callable, Iterator

import click

from kvgrove_cli.cluster.api import Object

WATCH_SECONDS = 1.0
"""Between two looks."""


def show_objects(
    look: Callable[[], list[Object]],
    output: str,
    show: Callable[[list[Object]], str],
    *,
    watch: bool,
    line: Callable[[list[Object]], str] | None = None,
) -> None:
    """``line``: what is redrawn in place of all of it, while somebody watches a terminal."""
    first = True
    for found in changes(look, watch=watch):
        if output == "json":
            click.echo(json.dumps({"apiVersion": "v1", "kind": "List", "items": found}, indent=4))
        elif output == "name":
            click.echo("\n".join(map(full_name, found)))
        elif line is not None and watch and not first:
            redraw(line(found))
        else:
            click.echo(show(found))
        first = False


def changes(look: Callable[[], list[Object]], *, watch: bool) -> Iterator[list[Object]]:
    """What ``look`` finds, each time that it is something else; once unless it is watched."""
    shown: list[str] | None = None
    while True:
        found = look()
        versions = [str(each["metadata"]["resourceVersion"]) for each in found]
        if versions != shown:
            shown = versions
            yield found
        if not watch:
            return
        time.sleep(WATCH_SECONDS)


def redraw(text: str) -> None:
    """In place of the line before, on a terminal."""
    if sys.stdout.isatty():
        click.echo(f"\r\033[K{text}", nl=False)
    else:
        click.echo(text)


def end_line() -> None:
    """After the last `redraw`."""
    if sys.stdout.isatty():
        click.echo()


def full_name(held: Object) -> str:
    """As kubectl spells it."""
    kind = str(held.get("kind", "")).lower()
    return f"{kind}.kvgrove.dev/{held['metadata']['name']}" if kind else str(held["metadata"]["name"])
