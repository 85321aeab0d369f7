"""``python -m kvgrove_crds render [--out DIR]... [--check]``: the only place of this package with a terminal."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from kvgrove_crds.render import rendered, stale, write

DEFAULT_OUT = (Path("crds/manifests"), Path("charts/kvgrove/files/crds"))
"""For kubectl, and for the chart, which cannot look beside itself."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0: written or current. 1: ``--check`` found files that are not current."""
    parser = argparse.ArgumentParser(prog="python -m kvgrove_crds", description="CRDs of kvgrove")
    commands = parser.add_subparsers(dest="command", required=True)
    render = commands.add_parser("render", help="write the CustomResourceDefinitions as YAML")
    render.add_argument(
        "--out",
        type=Path,
        action="append",
        metavar="DIR",
        help=f"folder to write to; repeatable (default: {', '.join(map(str, DEFAULT_OUT))})",
    )
    render.add_argument("--check", action="store_true", help="write nothing; fail if the files are not current")
    options = parser.parse_args(arguments)
    folders: Sequence[Path] = options.out or DEFAULT_OUT
    if options.check:
        different = [path for folder in folders for path in stale(folder)]
        for path in different:
            sys.stderr.write(f"{path}: not current; run `python -m kvgrove_crds render`\n")
        return 1 if different else 0
    for folder in folders:
        for path in write(folder):
            sys.stdout.write(f"{path}\n")
        sys.stdout.write(f"{len(rendered())} definitions are current in {folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
