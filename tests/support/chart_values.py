"""The table of values in the chart's README, made from the comments of values.yaml.

``python tests/support/chart_values.py`` writes it; a test says whether it is current.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from typing import Any

import yaml
from chart_rig import CHART

README, BEGIN, END = CHART / "README.md", "<!-- values: begin -->\n", "<!-- values: end -->\n"


def documented() -> Iterator[tuple[str, str, Any]]:
    """(path, comment, default) of each value that has a comment, in the order of the file."""
    text = (CHART / "values.yaml").read_text()
    values, steps, comment = yaml.safe_load(text), [], ""
    for line in text.splitlines():
        if said := re.fullmatch(r" *# -- (.+)", line):
            comment = said[1]
        elif key := re.match(r"( *)([A-Za-z]+):", line):
            depth = len(key[1]) // 2
            steps[depth:] = [key[2]]
            if comment:
                yield ".".join(steps), comment, _at(values, steps)
            comment = ""


def leaves() -> set[str]:
    """Paths of all values: of what is no mapping, and of mappings that have a comment as a whole."""
    whole = {path for path, _, _ in documented()}
    return set(_leaves(yaml.safe_load((CHART / "values.yaml").read_text()), "", whole))


def _leaves(values: dict[str, Any], above: str, whole: set[str]) -> Iterator[str]:
    for key, value in values.items():
        path = f"{above}{key}"
        if isinstance(value, dict) and path not in whole:
            yield from _leaves(value, f"{path}.", whole)
        else:
            yield path


def _at(values: Any, steps: list[str]) -> Any:
    for step in steps:
        values = values[step]
    return values


def table() -> str:
    rows = [
        f"| `{path}` | `{json.dumps(value, separators=(',', ':'))}` | {comment.replace('|', '&#124;')} |"
        for path, comment, value in documented()
    ]
    return "\n".join(["| value | default | what it is |", "|---|---|---|", *rows, ""])


def current(text: str) -> str:
    """``text`` with the table as it should be."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table()}{END}{after}"


if __name__ == "__main__":
    README.write_text(current(README.read_text()))
    sys.stdout.write(f"{README}: {len(list(documented()))} values\n")
