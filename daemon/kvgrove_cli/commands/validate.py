"""`kvgrove validate`."""

from pathlib import Path

import click

from kvgrove_cli.manifests import parse, take_snapshot


@click.command()
@click.argument("location", metavar="PATH", type=click.Path(path_type=Path))
def validate(location: Path) -> None:
    """Judge the manifests in PATH (a folder or a file) as `kvgrove up` would, without starting anything."""
    resources = parse(take_snapshot(location))
    models, namespaces = len(resources.models), len(resources.namespaces)
    click.echo(f"{location}: sound ({models} ModelVersion, {namespaces} PromptCacheNamespace)")
