"""Options that several commands share."""

import os
from pathlib import Path

import click

from kvgrove_cli.state_dir import StateDir, default_path

state_dir = click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=lambda: default_path(os.environ),
    show_default="$XDG_STATE_HOME/kvgrove/default",
    help="Where the fleet keeps its state.",
)

api_key = click.option(
    "--key",
    envvar="KVGROVE_API_KEY",
    show_envvar=True,
    help="API key; default: the development key of the fleet in --state-dir, if it has one.",
)
"""Better in the environment than on the command line, which others on the machine can read."""


def key_for(given: str | None, state_dir: Path) -> str:
    """The key to use; empty where there is none."""
    if given is not None:
        return given
    try:
        return StateDir(state_dir).development_key_file.read_text()
    except OSError:
        return ""
