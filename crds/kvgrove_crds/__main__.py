"""``python -m kvgrove_crds render [--out DIR] [--check]``: the only place of this package that speaks to a terminal."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from kvgrove_crds.render import rendered, stale, write

DEFAULT_OUT = Path("crds/manifests")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0: written or current. 1: ``--check`` found files that are not current."""
    parser = argparse.ArgumentParser(prog="python -m kvgrove_crds", description="CRDs of kvgrove")
    commands = parser.add_subparsers(dest="command", required=True)
    render = commands.add_parser("render", help="write the CustomResourceDefinitions as YAML")
    render.add_argument("--out", type=Path, default=DEFAULT_OUT, help="folder to write to (default: %(default)s)")
    render.add_argument("--check", action="store_true", help="write nothing; fail if the files are not current")
    options = parser.parse_args(arguments)
    if options.check:
        for path in stale(options.out):
            sys.stderr.write(f"{path}: not current; run `python -m kvgrove_crds render --out {options.out}`\n")
        return 1 if stale(options.out) else 0
    for path in write(options.out):
        sys.stdout.write(f"{path}\n")
    sys.stdout.write(f"{len(rendered())} definitions are current in {options.out}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
