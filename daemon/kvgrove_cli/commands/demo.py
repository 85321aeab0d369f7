"""`kvgrove demo`."""

import asyncio
import os
import shlex
import sys
import tempfile
import time
from pathlib import Path

import click

from kvgrove_cli import console
from kvgrove_cli.commands.up import curl_line
from kvgrove_cli.demo import stage
from kvgrove_cli.errors import FleetProblem

QUESTION = "How long does a large service take?"
DOCS_PAGE = "docs/quickstart.md"


@click.command()
@click.option("--model", metavar="PATH_OR_HF_ID", help="Another causal language model; default: SmolLM2-135M-Instruct.")
@click.option(
    "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write rows and checks here."
)
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("build/demo"),
    show_default=True,
    help="Where the manifests are written, and left for you to go on with.",
)
def demo(*, model: str | None, json_file: Path | None, directory: Path) -> None:
    """Show the main promises on a real model: two nodes, one table, every expectation checked."""
    try:
        from kvgrove_cli.demo import table  # noqa: PLC0415 - the client is a package that only the demo needs
        from kvgrove_cli.demo.models import locate  # noqa: PLC0415
        from kvgrove_cli.demo.story import Story  # noqa: PLC0415
    except ModuleNotFoundError as missing:
        raise FleetProblem(f"missing: the package {missing.name}; install the extras daemon and dev") from None
    console.log_to_stderr("ERROR")
    say = _Narrator()
    model_path = locate(model, lambda what, done: say(f"{what} ({done:.0%})"))
    manifests = directory.absolute() / "manifests"
    with tempfile.TemporaryDirectory(prefix="kvgrove-demo-") as state_dir:
        story = Story(model_path, manifests, Path(state_dir), say)
        checks = asyncio.run(story.tell())
    click.echo(f"\n{table.as_table(story.rows)}\n\n{table.as_verdicts(checks)}\n")
    if json_file is not None:
        table.write_json(json_file, story.rows, checks)
    failed = [name for name, held in checks.items() if not held]
    if failed:
        raise FleetProblem(f"{len(failed)} of {len(checks)} expectations failed: {', '.join(failed)}")
    click.echo(_what_next(manifests))


class _Narrator:
    """Lines with the seconds since the start, as they happen."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def __call__(self, line: str) -> None:
        click.echo(f"[{time.monotonic() - self._started:6.1f} s] {line}")


def _what_next(manifests: Path) -> str:
    command = shlex.quote(os.path.relpath(sys.argv[0]))
    state_dir = manifests.parent / "state"
    key = f"$(cat {shlex.quote(os.path.relpath(state_dir / 'development-key'))})"
    folder = os.path.relpath(manifests)
    state = os.path.relpath(state_dir)
    return "\n".join(
        [
            "What to try next:",
            "",
            "  # the same fleet, for as long as you like; edit the manifests while it runs",
            f"  {command} up --manifests {shlex.quote(folder)} --nodes 2 --state-dir {shlex.quote(state)}",
            "",
            "  # in another terminal, once it says ready",
            f"  {curl_line('http://127.0.0.1:8080/v1', key, stage.NAMESPACE, stage.PREFIX, QUESTION)}",
            f"  {command} status --state-dir {shlex.quote(state)} --watch",
            "",
            f"  # the guide: {DOCS_PAGE}",
        ]
    )
