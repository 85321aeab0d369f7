"""Options that several commands share."""

import os
from pathlib import Path

import click

from kvgrove_cli.state_dir import default_path

state_dir = click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=lambda: default_path(os.environ),
    show_default="$XDG_STATE_HOME/kvgrove/default",
    help="Where the fleet keeps its state.",
)
