"""For GitOps stories: whoever owns the namespace changes one line in Git at a time, and reads the status.

Real daemons with real models on two nodes, a real gateway, the operator with the rights of its manifests. What a test
"commits" is applied as Argo CD or Flux would.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from conftest import apply_crds
from controlplane.plane import Plane
from operator_rig import Gateway, Operator, apply, gateway, nodes, operator, wait_for, wait_ready
from simulated_fleet import Api, namespace_of
from tiny_models import cached_tiny_model

NAMESPACE = "default/bot"
HOUR = "1h"
LONG = "I bought a bicycle in your shop last week and the bell does not ring, what can be done about it? " * 4
PREFIX = {"name": "support", "version": "1", "text": "You help people with bicycles and never promise a date. " * 3}
DOCUMENT = {"name": "policy", "version": "1", "text": "Unused parts may be returned within 30 days. " * 4}


class Git:
    """What is declared; `commit` changes some of it and has it applied."""

    def __init__(self, plane: Plane, models: Path) -> None:
        self.plane, self.models = plane, models
        self.spec: dict[str, Any] = {
            "modelVersionRef": {"name": "m1"},
            "freshness": {"lease": "5s"},
            "prefixes": [PREFIX],
            "documents": [DOCUMENT],
            "warmup": {"topK": 0},
            "rollout": {"steps": [{"weight": 10, "pause": HOUR}, {"weight": 50, "pause": HOUR}], "window": HOUR},
        }

    def publish(self, name: str, **engine: Any) -> None:
        source = {"hostPath": {"path": f"{self.models}/{name}"}}
        self._apply("ModelVersion", name, {"source": source, "pool": POOL, "engine": engine})

    def commit(self, **spec: Any) -> None:
        self.spec = copy.deepcopy(self.spec | spec)
        self._apply("PromptCacheNamespace", "bot", self.spec, namespace="default")

    def move_to(self, model: str) -> None:
        self.commit(modelVersionRef={"name": model})

    def rollout(self, *pauses: str, **fields: Any) -> None:
        steps = [{"weight": weight, "pause": pause} for weight, pause in zip((10, 50), pauses, strict=True)]
        self.commit(rollout={"steps": steps, "window": HOUR} | fields)

    def declare(self, name: str, spec: dict[str, Any]) -> None:
        """Another namespace beside it."""
        self._apply("PromptCacheNamespace", name, spec, namespace="default")

    def _apply(self, kind: str, name: str, spec: dict[str, Any], **metadata: str) -> None:
        item = {"apiVersion": "kvgrove.dev/v1alpha1", "kind": kind, "metadata": {"name": name} | metadata, "spec": spec}
        apply(self.plane, "-f", "-", stdin=json.dumps(item))


POOL = {"host": "64Mi"}


class Story:
    def __init__(self, plane: Plane, git: Git, front: Gateway, op: Operator) -> None:
        self.plane, self.git, self.front, self.op = plane, git, front, op
        self._api = Api(plane)
        self._asked = 0

    @property
    def status(self) -> dict[str, Any]:
        return dict(self._api.call("GET", namespace_of("default", "bot")).get("status", {}))

    def until(self, phase: str, weight: int | None = None) -> dict[str, Any]:
        """The status once the rollout is there; on the way requests are answered."""

        def there() -> dict[str, Any] | None:
            self.ask(f"Does it go on {self._asked}?")
            status = self.status
            rollout = status.get("rollout", {})
            reached = rollout.get("phase") == phase and weight in (None, rollout.get("weight"))
            return status if reached else None

        found: dict[str, Any] = wait_for(there, f"{phase} at {weight}")
        return found

    def ask(self, question: str, **more: Any) -> dict[str, Any]:
        self._asked += 1
        answer = self.front.chat(NAMESPACE, question, **({"kvgrove": {"prefix": "support"}} | more))
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def share(self, generation: str, asked: int = 40, **more: Any) -> float:
        """Of new conversations, who is answered by ``generation``."""
        by = [self.ask(f"New question {n} of {self._asked}?", **more)["kvgrove"]["generation"] for n in range(asked)]
        return sum(generation.startswith(each) for each in by) / asked

    def generation(self, model: str) -> str:
        return str(
            wait_for(lambda: self.plane.get("mv", model).get("status", {}).get("generation"), f"generation of {model}")
        )


def reused(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def model_root(folder: Path) -> Path:
    """With m1, m2 and m3."""
    folder.mkdir()
    for name, seed in (("m1", 7), ("m2", 8), ("m3", 9)):
        (folder / name).symlink_to(cached_tiny_model("llama", seed=seed), target_is_directory=True)
    return folder


@contextmanager
def story(plane: Plane, folder: Path, *arguments: str) -> Iterator[Story]:
    """Given a namespace that is served by m1 on every node. ``arguments``: of the operator."""
    apply_crds(plane)
    models = model_root(folder / "models")
    with nodes(plane, folder / "nodes", "node-a", "node-b"), operator(plane, folder / "op", models, *arguments) as op:
        git = Git(plane, models)
        git.publish("m1")
        git.commit()
        wait_ready(plane, "pcn/bot")
        with gateway(plane, folder / "gateway", op.port) as front:
            here = Story(plane, git, front, op)
            wait_for(lambda: front.chat(NAMESPACE, "Hello?").status_code == 200, "an answer")
            yield here
