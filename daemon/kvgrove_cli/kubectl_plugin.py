"""The command `kubectl-kvgrove`, which kubectl runs for `kubectl kvgrove`."""

import sys

import click

from kvgrove_cli import console
from kvgrove_cli.commands import cluster, rollout


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def plugin() -> None:
    """Look at prompt caches on a cluster, roll generations out, and purge."""


for command in (cluster.status, cluster.nodes, rollout.rollout, cluster.purge):
    plugin.add_command(command)


def main() -> None:
    """Entry point: runs the command line of this process and exits with its code."""
    sys.exit(console.run(lambda: plugin.main(prog_name="kubectl kvgrove", standalone_mode=False)))


if __name__ == "__main__":
    main()
