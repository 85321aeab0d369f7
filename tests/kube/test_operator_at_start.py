"""Two thousand namespaces when the operator starts, and a node that never answers: counted in writes and probes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from conftest import apply_crds
from controlplane.plane import Plane
from operator_rig import MANIFESTS, Operator, operator, wait_for
from simulated_fleet import GROUP, Api, Object, Size, Statuses, declare, figure, namespace_path, node_objects

from kvgrove_operator.objects import FINALIZER

pytestmark = pytest.mark.timeout(900)

SIZE = Size(namespaces=2_000, models=4, nodes=1)
WAIT_SECONDS = 400.0
AT_ONCE = 8
STATUSES, REST = 2, 50
"""Statuses written of each namespace: as it is planned, and as its node is there; and all the rest together."""


def restore(api: Api, models: Path) -> None:
    """Objects as a backup brings them back: with the operator's finalizer, and nothing that it knows."""
    declare(api, Size(namespaces=0, models=SIZE.models, nodes=SIZE.nodes), models)

    def namespace(number: int) -> None:
        path, _, name = namespace_path(number, SIZE).rpartition("/")
        body = {
            "apiVersion": "kvgrove.dev/v1alpha1",
            "kind": "PromptCacheNamespace",
            "metadata": {"name": name, "finalizers": [FINALIZER]},
            "spec": {"modelVersionRef": {"name": f"m{number % SIZE.models}"}},
        }
        api.call("POST", path, body)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(namespace, range(SIZE.namespaces)))


@dataclass
class Kubelet:
    """Probes a process as its Deployment says, and counts what would make a kubelet restart it."""

    url: str
    probe: dict[str, Any]
    restarts: int = 0
    answered: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)

    @classmethod
    @contextmanager
    def watching(cls, op: Operator) -> Iterator[Kubelet]:
        text = (MANIFESTS / "cluster-wide" / "operator.yaml").read_text()
        (deployment,) = [each for each in yaml.safe_load_all(text) if each["kind"] == "Deployment"]
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        probe = container["livenessProbe"]
        made = cls(f"http://127.0.0.1:{op.probes}{probe['httpGet']['path']}", probe)
        thread = threading.Thread(target=made._watch, daemon=True)
        thread.start()
        try:
            yield made
        finally:
            made._stop.set()
            thread.join()
        assert made.answered
        assert not made.restarts, "a kubelet would have killed it"

    def _watch(self) -> None:
        failed = 0
        while not self._stop.wait(1):  # more often than it says: whatever it would have met is met
            try:
                well = httpx.get(self.url, timeout=self.probe["timeoutSeconds"]).status_code == 200
            except httpx.TransportError:
                well = False
            failed = 0 if well else failed + 1
            self.answered += well
            if failed == self.probe.get("failureThreshold", 3):
                self.restarts += 1
                failed = 0


@dataclass(frozen=True)
class Many:
    op: Operator
    api: Api
    statuses: Statuses

    def writes(self, kind: str = "api") -> int:
        return int(figure(self.op, f"kvgrove_operator_{kind}_writes_total"))

    def versions(self) -> dict[str, str]:
        found = self.api.call("GET", f"{GROUP}/promptcachenamespaces")["items"]
        return {each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in found}

    def status(self, number: int) -> Object:
        return dict(self.statuses.of(f"team-{number % SIZE.teams}", f"bot-{number:04}").get("status", {}))

    def wait(self, reached: Any, what: str) -> None:
        self.statuses.wait(reached, what, WAIT_SECONDS)

    def rest(self) -> None:
        """Until no status has been written for a moment."""
        before = -1
        while (now := self.writes("status")) != before:
            before = now
            time.sleep(3)


def test_ops_11_two_thousand_namespaces_at_start_cost_a_few_writes_each_and_no_probe(
    own_control_plane: Plane, tmp_path: Path
) -> None:
    plane, models = own_control_plane, tmp_path / "models"
    apply_crds(plane)
    models.mkdir()
    api = Api(plane)
    with ExitStack() as stack:
        stack.enter_context(node_objects(plane, tmp_path, SIZE))  # it is there, and nobody on it ever dials
        restore(api, models)
        op = stack.enter_context(operator(plane, tmp_path / "op", models, light=True))
        wait_for(op.leads, "a leader")
        many = Many(op, api, Statuses(api))
        with Kubelet.watching(op):
            # While it has its hands full, somebody asks for something.
            wait_for(lambda: many.writes("status") > 0, "the first status", WAIT_SECONDS)
            api.merge(namespace_path(8, SIZE), {"spec": {"purge": {"epoch": 2}}})
            wait_for(lambda: many.writes("status") >= SIZE.namespaces, "a status of each", WAIT_SECONDS)
            many.wait(lambda: many.status(8).get("purge", {}).get("observedEpoch") == 2, "the purge")
            many.rest()
        assert many.writes("status") <= STATUSES * SIZE.namespaces + REST
        assert many.writes() <= 2 * STATUSES * SIZE.namespaces, "a Secret of each, and renewals of the Lease"

        # A change of one is a matter of one.
        before, versions = many.writes("status"), many.versions()
        api.merge(namespace_path(7, SIZE), {"spec": {"suspend": True}})
        many.wait(lambda: many.status(7).get("observedGeneration") == 2, "the change of one")
        many.rest()
        assert {name for name, version in many.versions().items() if versions[name] != version} == {"bot-0007"}
        assert many.writes("status") - before <= 3
