"""`kvgrove lint`."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

from kvgrove_cli.errors import UsageProblem
from kvgrove_prompt.errors import InvalidMessages
from kvgrove_prompt.linter.lint import Finding
from kvgrove_prompt.linter.lint import lint as findings_in
from kvgrove_prompt.linter.sketch import StableSketch
from kvgrove_prompt.linter.stable_zone import Zone, zones_of_request

FOUND = 1
"""Exit code where something was found."""


@click.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def lint(files: tuple[Path, ...], output: str) -> None:
    """Find what keeps prompts from being reused: dates, clocks, ids, counters, shifting order.

    FILE holds a chat request as its client sends it (.json), several of them, one a line (.jsonl), or a text such as a
    declared prefix (anything else). Of several requests it is also said which position varies. Exit code 1: something
    was found. Nothing of a prompt is printed but where it was found.
    """
    sketch = StableSketch(os.urandom(32))
    found: list[tuple[str, Finding]] = []
    for name, zones in _requests(files):
        found += [(name, each) for each in [*findings_in(zones), *sketch.observe("", zones)]]
    if output == "json":
        click.echo(json.dumps([{"file": name, **msgspec.to_builtins(each), "cure": each.cure} for name, each in found]))
    else:
        for name, each in found:
            where = f"word {each.start}" if each.learned else f"characters {each.start}-{each.end}"
            click.echo(f"{name}: {each.zone}, {where}: {each.kind.value.replace('_', ' ')}: {each.cure}")
        if not found:
            click.echo("nothing found")
    if found:
        raise click.exceptions.Exit(FOUND)


def _requests(files: tuple[Path, ...]) -> Iterator[tuple[str, list[Zone]]]:
    """The stable zone of each request, with a name for it."""
    for file in files:
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageProblem(f"{file}: cannot be read as UTF-8 text: {error}") from None
        if file.suffix == ".json":
            yield str(file), _zones(str(file), text)
        elif file.suffix == ".jsonl":
            for number, line in enumerate(text.splitlines(), 1):
                if line.strip():
                    yield f"{file}:{number}", _zones(f"{file}:{number}", line)
        else:
            yield str(file), [Zone("text", text)]


def _zones(name: str, text: str) -> list[Zone]:
    try:
        return zones_of_request(json.loads(text))
    except (json.JSONDecodeError, RecursionError):
        raise UsageProblem(f"{name}: is not JSON: give a request as its client sends it") from None
    except InvalidMessages as error:
        raise UsageProblem(f"{name}: {error.message}") from None
