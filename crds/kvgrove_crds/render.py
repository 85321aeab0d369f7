"""Writes the CRDs as files, or says which files are not what the models would write."""

import re
from collections.abc import Mapping
from pathlib import Path

import yaml

from kvgrove_crds.crd import DEFINITIONS

HEADER = (
    "# Generated from the models in kvgrove_crds by `python -m kvgrove_crds render`: edit those, then render again.\n"
)
_FIRST = ("description", "type", "format", "enum", "default", "required")
_TYPES = ("object", "array", "string", "integer", "number", "boolean")


def rendered() -> Mapping[str, str]:
    """File name -> text, the same on every machine."""
    return {f"{definition.name}.yaml": _dump(definition.as_yaml()) for definition in DEFINITIONS}


def write(directory: Path) -> list[Path]:
    """Writes the files that differ and removes YAML files of kinds that no longer exist. Returns what it touched."""
    directory.mkdir(parents=True, exist_ok=True)
    touched = stale(directory)
    files = rendered()
    for path in touched:
        if path.name in files:
            path.write_text(files[path.name], encoding="utf-8")
        else:
            path.unlink()
    return touched


def stale(directory: Path) -> list[Path]:
    """Files that are missing, differ, or belong to no kind."""
    files = rendered()
    different = [
        directory / name
        for name, text in files.items()
        if not (directory / name).is_file() or (directory / name).read_text(encoding="utf-8") != text
    ]
    return different + sorted(path for path in directory.glob("*.yaml") if path.name not in files)


def _in_order(value: object) -> object:
    """Schema keywords in the order in which people read them, the rest as it was."""
    if isinstance(value, list):
        return [_in_order(item) for item in value]
    if not isinstance(value, dict):
        return value
    rank = {key: index for index, key in enumerate(_FIRST)} if "type" in value and value["type"] in _TYPES else {}
    keys = sorted(value, key=lambda key: rank.get(key, len(rank)))
    return {key: _in_order(value[key]) for key in keys}


class _Plain(yaml.SafeDumper):
    """SafeDumper that writes shared values out (anchors are noise in a diff) and quotes what kubectl misreads."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 (the answer is the same for all)
        return True


# A field named n is the text "n" to PyYAML and `false` to kubectl.
_Plain.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("^[yYnN]$"), list("yYnN"))


def _dump(value: object) -> str:
    return HEADER + yaml.dump(_in_order(value), Dumper=_Plain, sort_keys=False, width=120, allow_unicode=True)
