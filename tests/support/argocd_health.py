"""Argo CD's health scripts for our kinds, and the ConfigMap entries that carry them.

``python tests/support/argocd_health.py`` writes ``docs/gitops/argocd/argocd-cm.yaml`` from the scripts; a test says
whether it is current.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[2] / "docs" / "gitops" / "argocd"
CONFIG_MAP = FOLDER / "argocd-cm.yaml"
_HEADER = """\
# Made from the health.lua files beside it. Merge it into Argo CD's own ConfigMap:
#   kubectl patch configmap argocd-cm --namespace argocd --type merge --patch-file argocd-cm.yaml
"""


def scripts() -> dict[str, Path]:
    """Kind -> its script."""
    return {path.parent.name: path for path in sorted((FOLDER / "kvgrove.dev").glob("*/health.lua"))}


def cases(kind: str) -> list[tuple[Path, str, str]]:
    """(object, status, message) of each fixture."""
    folder = scripts()[kind].parent
    listed = yaml.safe_load((folder / "health_test.yaml").read_text())["tests"]
    return [
        (folder / each["inputPath"], each["healthStatus"]["status"], each["healthStatus"]["message"]) for each in listed
    ]


def health(lua: Any, kind: str, held: dict[str, Any]) -> tuple[str, str]:
    """(status, message) as Argo CD would find them: the object is the global ``obj``. ``lua``: a new runtime."""
    lua.globals().obj = lua.table_from(held, recursive=True)
    found = lua.execute(scripts()[kind].read_text())
    return str(found["status"]), str(found["message"])


def config_map() -> str:
    lines = [_HEADER + "data:"]
    for kind, path in scripts().items():
        lines.append(f"  resource.customizations.health.kvgrove.dev_{kind}: |")
        lines += [f"    {line}".rstrip() for line in path.read_text().splitlines()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    CONFIG_MAP.write_text(config_map())
    sys.stdout.write(f"{CONFIG_MAP}\n")
