"""How a process's links are closed: by keys, or by never leaving the machine.

Links without keys are for one machine, and somebody has to say so: an option that was forgotten must not open a fleet.
"""

import argparse
from collections.abc import Iterable
from pathlib import Path

from kvgrove_link.addresses import stays_here
from kvgrove_link.link_keys import DirectoryKeys, LinkKeys
from kvgrove_protocol.errors import Terminal


class LinksOpen(Terminal):
    """Links that anybody could dial."""

    code = "links_open"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of every process that has links: ``link_keys`` and ``plain_links``."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--link-keys", type=Path, metavar="DIR", help="CURVE certificates of this fleet's roles")
    group.add_argument(
        "--plain-links", action="store_true", help="links without keys: on one machine (loopback or ipc) only"
    )


def link_keys(folder: Path | None, plain: bool, role: str, addresses: Iterable[tuple[str, str]]) -> LinkKeys | None:
    """The keys of this process's links, not read yet; None: plain ones. ``addresses``: option and endpoint of each.

    Raises LinksOpen, which names the option and the cure.
    """
    if folder is not None:
        return DirectoryKeys(folder, role)
    if not plain:
        raise LinksOpen(
            "--link-keys: give the folder of this fleet's link keys (`kvgrove link-keys` makes them), or --plain-links "
            "where all links stay on this machine",
            field="--link-keys",
        )
    for option, address in addresses:
        if not stays_here(address):
            raise LinksOpen(
                f"{option} {address}: without keys links stay on this machine: give ipc://PATH or "
                "tcp://127.0.0.1:PORT, or --link-keys",
                field=option,
            )
    return None
