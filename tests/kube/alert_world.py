"""A fleet that is watched: a node, an operator that keeps thresholds, a gateway, Prometheus and Alertmanager.

The node has two models whose blocks differ, and so two pools. ``shop/template``, ``shop/clock`` and ``shop/well`` have
ample room in one, with a disk below it. ``shop/flooded`` takes half of the other, which it shares with the tenants of
``shop/flood``; these are silent until they are told to ask.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import prometheus_kinds
import zmq
from alert_load import Caller, asking, conversations, said, text, unique
from conftest import apply_crds
from controlplane.plane import Plane
from operator_rig import OWN, Gateway, Operator, apply, gateway, nodes, operator, wait_for, wait_ready
from prometheus_rig import Target, Watch, watching
from tiny_models import CHAT_TEMPLATE, cached_tiny_model

from kvgrove_cli import api_keys
from kvgrove_operator import alerts

NODE, NODE_METRICS = "node-a", 9400
FAMILIES = {"tiny": "llama", "small": "qwen2"}
TEMPLATE, CLOCK, WELL = "shop/template", "shop/clock", "shop/well"
FLOODED, FLOOD = "shop/flooded", "shop/flood"
NEXT_TEMPLATE = "{{ '<|im_start|>system\nAnswer in the language of the question.<|im_end|>\n' }}" + CHAT_TEMPLATE
TEXT = "Every tenant shares the manual. The answer measures a refund after 14 days. " * 3
PREFIX = {"name": "support", "version": "1", "text": TEXT}


@dataclass
class World:
    plane: Plane
    op: Operator
    front: Gateway
    callers: dict[str, Caller]
    models: Path
    watch: Watch
    specs: dict[str, dict[str, Any]]

    def flood(self, pace: float) -> None:
        """Each tenant of `FLOOD` asks so often a second."""
        for name, caller in self.callers.items():
            if name.startswith(f"{FLOOD} "):
                caller.pace = pace

    def move_to(self, namespace: str, model: str) -> None:
        """What changes of the namespace in Git is one line."""
        declare(self.plane, namespace, self.specs[namespace] | {"modelVersionRef": {"name": model}})


def declare(plane: Plane, name: str, spec: dict[str, Any]) -> None:
    """A namespace as OWNER/NAME, or a ModelVersion."""
    where, _, short = name.rpartition("/")
    kind = "PromptCacheNamespace" if where else "ModelVersion"
    metadata = {"name": short, **({"namespace": where} if where else {})}
    item = {"apiVersion": "kvgrove.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}
    apply(plane, "-f", "-", stdin=json.dumps(item))


def _specs() -> dict[str, dict[str, Any]]:
    def namespace(model: str, **more: Any) -> dict[str, Any]:
        return {"modelVersionRef": {"name": model}, "rollout": {"steps": [{"weight": 100}]}, **more}

    priced = {"inputPerMillionTokens": 2.0, "cachedInputPerMillionTokens": 0.2, "outputPerMillionTokens": 6.0}
    return {
        TEMPLATE: namespace("tiny", prefixes=[PREFIX], pricing=priced, alerts={"minimumHitRatio": 0.2}),
        CLOCK: namespace("tiny"),
        WELL: namespace("tiny"),
        FLOODED: namespace("small"),
        FLOOD: namespace("small"),
    }


def _callers(secrets: dict[str, str]) -> dict[str, Caller]:
    mine = secrets["acme"]
    with_prefix = conversations("template", 90, 260)
    return {
        TEMPLATE: Caller(TEMPLATE, lambda n: with_prefix(n) | {"kvgrove": {"prefix": "support"}}, 2.0, mine),
        CLOCK: Caller(CLOCK, conversations("clock", 20, 200), 1.5, mine),
        WELL: Caller(WELL, conversations("well", 10, 200), 1.0, mine),
        FLOODED: Caller(FLOODED, conversations("flooded", 40, 200), 1.25, mine),
        **{f"{FLOOD} {name}": Caller(FLOOD, unique(name, 300), 0.0, secrets[name]) for name in ("globex", "initech")},
        "too long": Caller(TEMPLATE, lambda _: said(text("long", 3000)), 0.5, mine, {400}),
        "unknown": Caller(WELL, lambda n: said(text(f"unknown {n}", 20)), 0.5, "nobody's key", {401}),
    }


_ROLE = """\
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: kvgrove-thresholds, namespace: kvgrove-system}
rules: [{apiGroups: [monitoring.coreos.com], resources: [prometheusrules], verbs: [create, patch]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: kvgrove-thresholds, namespace: kvgrove-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: kvgrove-thresholds}
subjects: [{kind: ServiceAccount, name: kvgrove-operator, namespace: kvgrove-system}]
"""
"""As the chart has it."""


@contextmanager
def watched_fleet(plane: Plane, folder: Path) -> Iterator[World]:
    """Every namespace is Ready, has been asked all that it is usually asked, and is asked on.

    Raises `chart_tools.ToolProblem` where Prometheus or Alertmanager cannot be had.
    """
    apply_crds(plane)
    apply(plane, "-f", "-", stdin=prometheus_kinds.DEFINITIONS)
    models = folder / "models"
    models.mkdir()
    for name, family in FAMILIES.items():
        (models / name).symlink_to(cached_tiny_model(family), target_is_directory=True)
    options = ("--alert-thresholds", "--daemon-metrics-port", str(NODE_METRICS))
    with ExitStack() as stack:
        stack.enter_context(nodes(plane, folder / "nodes", NODE))
        op = stack.enter_context(operator(plane, folder / "op", models, *options))
        apply(plane, "-f", "-", stdin=_ROLE)
        specs = _specs()
        _declare_all(plane, models, specs)
        for name in specs:
            wait_ready(plane, f"pcn/{name.rpartition('/')[2]}", "-n", "shop")
        front = stack.enter_context(gateway(plane, folder / "gateway", op.port))
        secrets = _more_keys(folder / "gateway" / "keys.yaml") | {"acme": front.secret}
        callers = _callers(secrets)
        for caller in callers.values():
            _ask_usual(front, caller)
        thresholds = plane.get("prometheusrule", alerts.NAME, "-n", OWN)["spec"]
        _knock(plane)
        stack.enter_context(asking(front.address, callers))
        watch = stack.enter_context(watching(folder / "watch", _targets(plane, op, front, secrets), thresholds))
        yield World(plane, op, front, callers, models, watch, specs)


def _declare_all(plane: Plane, models: Path, specs: dict[str, dict[str, Any]]) -> None:
    assert plane.kubectl("create", "namespace", "shop").returncode == 0
    made = plane.kubectl("create", "configmap", "templates", "-n", OWN, f"--from-literal=next={NEXT_TEMPLATE}")
    assert made.returncode == 0, made.stderr
    sources = {name: {"source": {"hostPath": {"path": f"{models}/{name}"}}} for name in FAMILIES}
    ample = {"pool": {"host": "96Mi", "disk": "96Mi"}}
    template = {"chatTemplateFrom": {"configMapRef": {"name": "templates", "key": "next"}}}
    declare(plane, "tiny", sources["tiny"] | ample)
    declare(plane, "tiny-next", sources["tiny"] | ample | template)
    declare(plane, "small", sources["small"] | {"pool": {"host": "20Mi"}})
    for name, spec in specs.items():
        declare(plane, name, spec)


def _more_keys(file: Path) -> dict[str, str]:
    """Of the other tenants, and of whoever scrapes."""
    secrets = {name: api_keys.new_secret() for name in ("globex", "initech", "monitor")}
    for name, secret in secrets.items():
        api_keys.create(file, secret=secret, key_id=name, tenant=name, monitor=name == "monitor")
    return secrets


def _ask_usual(front: Gateway, caller: Caller) -> None:
    """All that comes round, once, as it was asked for on the days before."""
    with httpx.Client(base_url=front.address, timeout=60) as client:
        if caller.pace:
            wait_for(lambda: caller.ask(client) or caller.answers[200] or max(caller.answers) < 500, caller.namespace)
            for _ in range(int(caller.pace * 50)):
                caller.ask(client)
        caller.answers.clear()


def _knock(plane: Plane) -> None:
    """Somebody without a key dials each node."""
    with zmq.Context() as context:
        for pod in _daemons(plane):
            with context.socket(zmq.DEALER) as socket:
                socket.linger = 0
                socket.connect(f"tcp://{pod['status']['podIP']}:7401")
                socket.poll(500)


def _daemons(plane: Plane) -> list[dict[str, Any]]:
    return list(plane.get("pods", "-n", OWN)["items"])


def _targets(plane: Plane, op: Operator, front: Gateway, secrets: dict[str, str]) -> list[Target]:
    """Everybody, as the chart's PodMonitors find them."""
    return [
        Target(f"127.0.0.1:{op.metrics}", {"pod": "operator-0"}),
        Target(front.address.removeprefix("http://"), {"pod": "gateway-0"}, secrets["monitor"]),
        *(
            Target(
                f"{pod['status']['podIP']}:{NODE_METRICS}",
                {"pod": pod["metadata"]["name"], "node": pod["spec"]["nodeName"]},
            )
            for pod in _daemons(plane)
        ),
    ]
