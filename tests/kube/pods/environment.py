"""The environment and the command line of a container: values, references, the downward API, ``$(NAME)``. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

Json = dict[str, Any]
Lookup = Callable[[str, Json], dict[str, str] | None]
"""(kind, reference with its name) -> all keys of that ConfigMap or Secret; None where it may be missing and is.
Raises `ConfigProblem` where it may not."""


class ConfigProblem(Exception):
    """What a container needs and does not find, as a kubelet would say it. The agent tries again."""


_REFERENCE = re.compile(r"\$\$|\$\(([-._a-zA-Z][-._a-zA-Z0-9]*)\)")


def expand(text: str, known: Mapping[str, str]) -> str:
    """``$(NAME)`` as its value; ``$$`` as a dollar; an unknown name stays as it stands."""
    return _REFERENCE.sub(lambda found: "$" if found[0] == "$$" else known.get(found[1], found[0]), text)


def field_of(pod: Json, path: str, addresses: Mapping[str, str]) -> str:
    """A field of the downward API. ``addresses``: status.podIP and status.hostIP, known before they are reported."""
    if path in addresses:
        return addresses[path]
    indexed = re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path)
    if indexed is not None:
        return str(pod["metadata"].get(indexed[1], {}).get(indexed[2], ""))
    here: Any = pod
    for part in path.split("."):
        here = here.get(part, "") if isinstance(here, dict) else ""
    if isinstance(here, dict):
        return "\n".join(f'{key}="{value}"' for key, value in sorted(here.items()))
    return str(here)


def environment_of(container: Json, pod: Json, lookup: Lookup, addresses: Mapping[str, str]) -> dict[str, str]:
    """What a container's ``envFrom`` and ``env`` say, later entries over earlier ones, references expanded in order."""
    made: dict[str, str] = {}
    for source in container.get("envFrom", []):
        for field, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
            if field in source:
                keys = lookup(kind, source[field]) or {}
                made |= {source.get("prefix", "") + key: value for key, value in keys.items()}
    for entry in container.get("env", []):
        value = _value(entry, pod, lookup, addresses)
        if value is not None:
            made[entry["name"]] = value if "valueFrom" in entry else expand(value, made)
    return made


def _value(entry: Json, pod: Json, lookup: Lookup, addresses: Mapping[str, str]) -> str | None:
    source = entry.get("valueFrom")
    if source is None:
        return str(entry.get("value", ""))
    if "fieldRef" in source:
        return field_of(pod, source["fieldRef"]["fieldPath"], addresses)
    for field, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
        if field in source:
            wanted = source[field]
            found = (lookup(kind, wanted) or {}).get(wanted["key"])
            if found is None and not wanted.get("optional"):
                raise ConfigProblem(f"{kind} {wanted['name']} has no key {wanted['key']}")
            return found
    raise ConfigProblem(f"env {entry['name']}: nodes of the tests know fieldRef, configMapKeyRef and secretKeyRef")
