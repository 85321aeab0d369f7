"""`kvgrove version`."""

from importlib.metadata import version as installed

import click

from kvgrove_protocol.codec import PROTOCOL_VERSION


@click.command()
def version() -> None:
    """Print the versions of kvgrove and of its protocol."""
    click.echo(f"kvgrove {installed('kvgrove')} (protocol {PROTOCOL_VERSION})")
