"""A GitOps story: whoever owns the namespace changes one line in Git at a time, and reads the status.

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

import pytest
from conftest import apply_crds
from controlplane.plane import Plane
from operator_rig import Gateway, apply, condition, gateway, nodes, operator, wait_for, wait_ready
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

    def publish(self, name: str) -> None:
        self._apply("ModelVersion", name, {"source": {"hostPath": {"path": f"{self.models}/{name}"}}, "pool": POOL})

    def commit(self, **spec: Any) -> None:
        self.spec = copy.deepcopy(self.spec | spec)
        self._apply("PromptCacheNamespace", "bot", self.spec, namespace="default")

    def move_to(self, model: str) -> None:
        self.commit(modelVersionRef={"name": model})

    def rollout(self, *pauses: str, **fields: Any) -> None:
        steps = [{"weight": weight, "pause": pause} for weight, pause in zip((10, 50), pauses, strict=True)]
        self.commit(rollout={"steps": steps, "window": HOUR} | fields)

    def _apply(self, kind: str, name: str, spec: dict[str, Any], **metadata: str) -> None:
        item = {"apiVersion": "kvgrove.dev/v1alpha1", "kind": kind, "metadata": {"name": name} | metadata, "spec": spec}
        apply(self.plane, "-f", "-", stdin=json.dumps(item))


POOL = {"host": "64Mi"}


class Story:
    def __init__(self, plane: Plane, git: Git, front: Gateway) -> None:
        self.plane, self.git, self.front = plane, git, front
        self._asked = 0

    @property
    def status(self) -> dict[str, Any]:
        return dict(self.plane.get("pcn", "bot").get("status", {}))

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

    def share(self, generation: str, asked: int = 40) -> float:
        """Of new conversations, who is answered by ``generation``."""
        by = [self.ask(f"New question {n} of {self._asked}?")["kvgrove"]["generation"] for n in range(asked)]
        return sum(generation.startswith(each) for each in by) / asked

    def generation(self, model: str) -> str:
        return str(
            wait_for(lambda: self.plane.get("mv", model).get("status", {}).get("generation"), f"generation of {model}")
        )


def reused(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


@contextmanager
def story(plane: Plane, folder: Path) -> Iterator[Story]:
    """Given a namespace that is served by m1 on every node."""
    apply_crds(plane)
    models = folder / "models"
    models.mkdir()
    for name, seed in (("m1", 7), ("m2", 8)):
        (models / name).symlink_to(cached_tiny_model("llama", seed=seed), target_is_directory=True)
    with nodes(plane, folder / "nodes", "node-a", "node-b"), operator(plane, folder / "op", models) as op:
        git = Git(plane, models)
        git.publish("m1")
        git.commit()
        wait_ready(plane, "pcn/bot")
        with gateway(plane, folder / "gateway", op.port) as front:
            here = Story(plane, git, front)
            wait_for(lambda: front.chat(NAMESPACE, "Hello?").status_code == 200, "an answer")
            yield here


@pytest.mark.timeout(900)
def test_ops_12_ops_14_one_changed_line_moves_a_namespace_and_one_takes_it_back(
    own_control_plane: Plane, tmp_path: Path
) -> None:
    with story(own_control_plane, tmp_path) as here:
        git, plane = here.git, here.plane
        m1 = here.generation("m1")
        old = here.ask(LONG, kvgrove={})
        assert reused(here.ask(LONG, kvgrove={})) > 0

        # when a new version is published and one line names it
        git.publish("m2")
        m2 = here.generation("m2")
        git.move_to("m2")
        # then both are served side by side, the new one is warmed, and a tenth of new conversations goes to it
        status = here.until("Shifting", 10)
        assert (status["activeGeneration"], status["desiredGeneration"]) == (m1, m2)
        assert status["rollout"]["changedFields"] == ["weights"]
        assert condition(plane, "pcn", "bot", "Warm")["status"] == "True"
        assert condition(plane, "pcn", "bot", "Ready")["status"] == "True"
        assert condition(plane, "pcn", "bot", "Promoted")["reason"] == "Shifting"
        assert here.share(m2) < 0.35

        # when the first pause is over
        git.rollout("0s", HOUR)
        here.until("Shifting", 50)
        assert 0.2 < here.share(m2) < 0.8

        # when one line goes back in mid-shift, then nothing of the new one answers, and its blocks are erased
        git.move_to("m1")
        here.until("RolledBack")
        assert here.share(m2, 10) == 0
        assert condition(plane, "pcn", "bot", "Promoted")["status"] == "True"
        wait_for(lambda: condition(plane, "pcn", "bot", "ErasureVerified")["status"] == "True", "receipts")
        assert here.status["erasure"]["receipts"] >= 3

        # when it is declared again and all pauses are over, then it is promoted, and the old one can be gone back to
        git.move_to("m2")
        git.rollout("0s", "0s")
        status = here.until("Promoted")
        assert (status["activeGeneration"], status["previousGeneration"]) == (m2, m1)
        assert here.share(m2, 10) == 1
        # and no token of one is reused by the other
        first = here.ask(LONG, kvgrove={})
        assert (first["kvgrove"]["generation"], reused(first)) == (m2[:12], 0)
        assert first["usage"]["prompt_tokens"] == old["usage"]["prompt_tokens"]

        # when the window is over, then the old one is erased with receipts, and its version may be deleted
        before = here.status["erasure"]["revision"]
        git.rollout("0s", "0s", window="1s")
        wait_for(lambda: here.status["erasure"]["revision"] > before and _verified(here), "the erasure of the old one")
        assert "previousGeneration" not in here.status
        assert plane.kubectl("delete", "mv", "m1", "--timeout=60s").returncode == 0
        assert here.share(m2, 5) == 1


@pytest.mark.timeout(900)
def test_cor_01_what_fails_goes_back_what_stalls_waits_and_what_was_withdrawn_is_read_by_nobody(
    own_control_plane: Plane, tmp_path: Path
) -> None:
    with story(own_control_plane, tmp_path) as here:
        git, plane = here.git, here.plane
        git.publish("m2")
        m1, m2 = here.generation("m1"), here.generation("m2")

        # when the warm-up of the new version cannot reach its ratio
        git.commit(
            prefixes=[PREFIX, {"name": "long", "version": "1", "text": LONG * 10}],
            quota={"host": {"ceiling": "1Mi"}},
            warmup={"deadline": "1s", "minimumRatio": 1.0, "topK": 0},
        )
        git.move_to("m2")
        # then it stalls, says why, and the old one serves on
        here.until("Stalled")
        assert condition(plane, "pcn", "bot", "Stalled")["reason"] == "WarmupDeadlineExceeded"
        assert here.share(m2, 10) == 0

        # when there is room, and the analysis asks for more than the new version gives
        analysis = {"interval": "1s", "minimumRequests": 1, "minimumHitRatio": 1.0, "inconclusiveLimit": 1000}
        git.commit(prefixes=[PREFIX], quota={})
        git.rollout("0s", HOUR, analysis=analysis)
        # then it goes back by itself
        here.until("RolledBack")
        assert condition(plane, "pcn", "bot", "Promoted")["reason"] == "AnalysisFailed"
        assert condition(plane, "pcn", "bot", "Stalled")["status"] == "True"
        assert here.share(m2, 10) == 0
        assert here.status["activeGeneration"] == m1

        # when the limits are lowered it is tried again, and in mid-rollout a document is withdrawn
        git.rollout("0s", HOUR)
        here.until("Shifting", 50)
        with_document = {"kvgrove": {"documents": ["policy"]}}
        asked = [f"May I return article {n}?" for n in range(8)]
        assert {here.ask(each, **with_document)["kvgrove"]["generation"] for each in asked} == {m1[:12], m2[:12]}
        revision = here.status["documentRevision"]
        git.commit(documents=[])
        wait_for(lambda: here.status["documentRevision"] > revision and _invalidated(here), "the withdrawal")
        # then neither generation reads it, and a rollback does not either
        assert {here.front.chat(NAMESPACE, each, **with_document).status_code for each in asked} == {404}
        git.move_to("m1")
        here.until("RolledBack")
        assert {here.front.chat(NAMESPACE, each, **with_document).status_code for each in asked} == {404}


def _verified(here: Story) -> bool:
    return str(condition(here.plane, "pcn", "bot", "ErasureVerified")["status"]) == "True"


def _invalidated(here: Story) -> bool:
    return str(condition(here.plane, "pcn", "bot", "InvalidationComplete")["status"]) == "True"
