"""`kvgrove link-keys`: the CURVE keys of the links between operator, daemons and gateways, as folders."""

from collections.abc import Callable
from pathlib import Path

import click

from kvgrove_cli import key_folders
from kvgrove_cli.errors import UsageProblem
from kvgrove_link.key_rotation import ROLES, Folders, activated, announced, created, retired
from kvgrove_link.link_keys import LinkKeysUnusable, fresh_pair

_folder = click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
_role = click.argument("role", type=click.Choice(ROLES))


@click.group("link-keys")
def link_keys() -> None:
    """Make and change the keys of a fleet's links: FOLDER holds one folder for each role, given as --link-keys.

    A key is changed without anybody staying out by announce, activate (then restart that role, one by one), retire.
    Daemons and gateways read changed folders by themselves.
    """


@link_keys.command()
@_folder
def create(folder: Path) -> None:
    """Make the keys that are missing; those that are there stay."""
    _change(folder, lambda folders: created(folders, fresh_pair))
    for role in ROLES:
        click.echo(f"{role}: --link-keys {folder / role}")


@link_keys.command()
@_folder
@_role
def announce(folder: Path, role: str) -> None:
    """Let everybody know the next key of ROLE."""
    _change(folder, lambda folders: announced(folders, role, fresh_pair))
    click.echo(f"{role}: its next key is known; when every process has the changed files, activate it")


@link_keys.command()
@_folder
@_role
def activate(folder: Path, role: str) -> None:
    """Use the announced key of ROLE; the former is still let in."""
    _change(folder, lambda folders: activated(folders, role))
    click.echo(f"{role}: restart its processes one by one, then retire the former key")


@link_keys.command()
@_folder
@_role
def retire(folder: Path, role: str) -> None:
    """Let the former key of ROLE in no more."""
    _change(folder, lambda folders: retired(folders, role))
    click.echo(f"{role}: its former key opens nothing any more")


def _change(folder: Path, step: Callable[[Folders], Folders]) -> None:
    try:
        key_folders.change(folder, step)
    except LinkKeysUnusable as error:
        raise UsageProblem(error.message, field=error.field) from None
