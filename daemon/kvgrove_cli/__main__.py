"""The command `kvgrove`."""

import sys

import click

from kvgrove_cli import console
from kvgrove_cli.commands import (
    cluster,
    demo,
    estimate,
    explain,
    keys,
    link_keys,
    lint,
    rollout,
    savings,
    simulate,
    status,
    trace,
    up,
    validate,
    version,
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def kvgrove() -> None:
    """Keep the prompt caches of an inference fleet warm, isolated, fresh and explainable."""


for command in (
    demo.demo,
    estimate.estimate,
    explain.explain,
    keys.keys,
    link_keys.link_keys,
    lint.lint,
    cluster.nodes,
    cluster.purge,
    rollout.rollout,
    savings.savings,
    simulate.simulate,
    status.status,
    trace.trace,
    up.up,
    validate.validate,
    version.version,
):
    kvgrove.add_command(command)


def main() -> None:
    """Entry point: runs the command line of this process and exits with its code."""
    sys.exit(console.run(lambda: kvgrove.main(prog_name="kvgrove", standalone_mode=False)))


if __name__ == "__main__":
    main()
