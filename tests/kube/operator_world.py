"""A small world for tests of the operator: three nodes whose daemons have no engine, two models, a namespace."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conftest import apply_crds
from controlplane.plane import Plane
from nodeagent import NodeAgent
from operator_rig import Operator, apply, condition, nodes, operator, wait_ready

NODES = ("node-a", "node-b", "node-c")
MODEL = """\
apiVersion: kvgrove.dev/v1alpha1
kind: ModelVersion
metadata: {{name: {name}}}
spec: {{source: {{hostPath: {{path: {models}/{name}}}}}}}
"""
NAMESPACE = """\
apiVersion: kvgrove.dev/v1alpha1
kind: PromptCacheNamespace
metadata: {{name: bot, namespace: default}}
spec:
  modelVersionRef: {{name: {model}}}
  freshness: {{lease: 3s}}
  purge: {{epoch: {epoch}}}
  rollout: {{steps: [{{weight: 100}}]}}
  prefixes:
  - {{name: support, version: "1", configMapKeyRef: {{name: texts, key: support}}}}
"""


@dataclass(frozen=True)
class World:
    plane: Plane
    agent: NodeAgent
    op: Operator
    folder: Path

    def declare(self, model: str = "m1", epoch: int = 1, name: str = "bot") -> None:
        text = NAMESPACE.format(model=model, epoch=epoch).replace("name: bot", f"name: {name}")
        apply(self.plane, "-f", "-", stdin=text)

    def delete(self, kind: str, name: str) -> None:
        done = self.plane.kubectl("delete", kind, name, "--wait=false")
        assert done.returncode == 0, done.stderr

    def status(self, name: str = "bot") -> dict[str, Any]:
        return dict(self.plane.get("pcn", name).get("status", {}))

    def is_gone(self, kind: str, name: str) -> bool:
        return "NotFound" in self.plane.kubectl("get", kind, name).stderr

    def light(self, node: str) -> dict[str, Any]:
        """What the daemon of this node knows."""
        found = sorted(self.agent.nodes[node].machine.root.rglob("light.json"))
        return dict(json.loads(found[0].read_text())) if found else {}

    def events(self, reason: str) -> list[dict[str, Any]]:
        return [each for each in self.plane.get("events")["items"] if each["reason"] == reason]


@contextmanager
def world(plane: Plane, folder: Path, *arguments: str, port: int | None = None) -> Iterator[World]:
    """``arguments``, ``port``: of the operator."""
    apply_crds(plane)
    models = folder / "models"
    models.mkdir()
    made = plane.kubectl("create", "configmap", "texts", "--from-literal=support=You help people with bicycles.")
    assert made.returncode == 0, made.stderr
    running = operator(plane, folder / "op", models, *arguments, light=True, port=port)
    with nodes(plane, folder / "nodes", *NODES) as agent, running as op:
        for name in ("m1", "m2"):
            apply(plane, "-f", "-", stdin=MODEL.format(name=name, models=models))
        here = World(plane, agent, op, folder)
        here.declare()
        wait_ready(plane, "pcn/bot")
        yield here


def complete(status: dict[str, Any]) -> bool:
    return any(each["type"] == "InvalidationComplete" and each["status"] == "True" for each in status["conditions"])


def uid_of(plane: Plane, name: str = "bot") -> str:
    return str(plane.get("pcn", name)["metadata"]["uid"])


def with_reason(plane: Plane, kind: str, name: str, of: str, reason: str) -> dict[str, Any] | None:
    found = condition(plane, kind, name, of)
    return found if found.get("reason") == reason else None
