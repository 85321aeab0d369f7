"""What the operator promises of freshness, deletion and leadership: a real API server, daemons without an engine."""

from __future__ import annotations

import base64
import itertools
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from conftest import apply_crds
from controlplane.plane import Plane
from operator_rig import MANIFESTS, Operator, apply, condition, token, wait_for, wait_ready
from operator_world import MODEL, NAMESPACE, NODES, complete, uid_of, with_reason, world


@pytest.mark.timeout(600)
def test_a_purge_is_complete_when_all_have_confirmed_and_a_deletion_when_all_gave_receipts(
    own_control_plane: Plane, tmp_path: Path
) -> None:
    with world(own_control_plane, tmp_path) as here:
        plane = here.plane
        counter = here.status()["purge"]["counter"]
        here.declare(epoch=2)
        status = wait_for(lambda: (s := here.status())["purge"]["counter"] > counter and complete(s) and s, "the purge")
        assert status["purge"]["observedEpoch"] == 2
        assert (status["invalidation"]["confirmed"], status["invalidation"]["pending"]) == (3, 0)
        assert {here.light(node)["fences"][uid_of(plane)][0] for node in NODES} == {status["purge"]["counter"]}

        counter = status["purge"]["counter"]
        here.declare(epoch=1)  # a Git revert is another purge
        wait_for(lambda: here.status()["purge"]["counter"] > counter, "the purge of a revert")

        revision = here.status()["documentRevision"]
        patch = json.dumps({"data": {"support": "You help people with boats."}})
        assert plane.kubectl("patch", "configmap", "texts", "-p", patch).returncode == 0
        wait_for(lambda: here.status()["documentRevision"] > revision, "the ConfigMap's new text")

        here.delete("mv", "m1")
        refused = wait_for(lambda: with_reason(plane, "mv", "m1", "Ready", "InUse"), "a refused deletion")
        assert "default/bot" in refused["message"]

        here.delete("pcn", "bot")
        wait_for(lambda: here.is_gone("pcn", "bot"), "the end of the namespace")
        (event,) = here.events("ErasureConfirmed")
        assert "3 receipts" in event["message"]
        wait_for(lambda: here.is_gone("mv", "m1"), "the end of the model that nobody uses any more")
        wait_for(lambda: not _secrets(plane), "the end of what was on record")


@pytest.mark.timeout(600)
def test_deletion_waits_for_a_node_that_hangs_and_not_for_one_that_was_taken_out(
    own_control_plane: Plane, tmp_path: Path
) -> None:
    with world(own_control_plane, tmp_path) as here:
        plane = here.plane
        here.agent.pause("node-b")
        here.delete("pcn", "bot")
        missing = wait_for(
            lambda: with_reason(plane, "pcn", "bot", "ErasureVerified", "NodeUnreachable"), "an unreachable node"
        )
        assert "node-b" in missing["message"]
        assert here.status()["erasure"]["receipts"] == 2
        assert not _destroyed(plane), "no secret is left of a namespace that is being erased"
        assert plane.kubectl("delete", "node", "node-b").returncode == 0
        wait_for(lambda: here.is_gone("pcn", "bot"), "the end of the namespace")
        (event,) = here.events("ErasureConfirmed")
        assert "2 receipts, 1 gone, shredded" in event["message"]


@pytest.mark.timeout(600)
def test_a_waiver_is_on_record_and_what_comes_back_later_is_wiped(own_control_plane: Plane, tmp_path: Path) -> None:
    with world(own_control_plane, tmp_path) as here:
        plane, uid = here.plane, uid_of(here.plane)
        here.agent.pause("node-b")
        here.delete("pcn", "bot")
        wait_for(lambda: with_reason(plane, "pcn", "bot", "ErasureVerified", "NodeUnreachable"), "an unreachable node")
        waiver = {"reason": "burnt down", "approvedBy": "the officer", "nodes": ["node-b"]}
        patch = json.dumps({"spec": {"privacy": {"waiver": waiver}}})
        patched = plane.kubectl("patch", "pcn", "bot", "--type=merge", "-p", patch)
        assert patched.returncode == 0, patched.stderr
        wait_for(lambda: here.is_gone("pcn", "bot"), "the end of the namespace")
        (event,) = here.events("ErasureWaived")
        assert "node-b by the officer: burnt down" in event["message"]
        assert _secrets(plane), "it is still to be erased there"
        here.agent.resume("node-b")
        wait_for(lambda: uid not in here.light("node-b")["fences"], "the node that came back to wipe it")
        wait_for(lambda: not _secrets(plane), "the end of what was on record")


@pytest.mark.timeout(600)
def test_a_new_operator_knows_who_holds_what_and_goes_on_above_every_counter(
    own_control_plane: Plane, tmp_path: Path
) -> None:
    with world(own_control_plane, tmp_path) as here:
        plane, before = here.plane, here.status()
        assert here.op.end(signal.SIGKILL)
        here.declare(epoch=7)  # asked for while nobody is there
        here.op.start()
        status = wait_for(
            lambda: (s := here.status())["purge"]["observedEpoch"] == 7 and complete(s) and s, "the purge"
        )
        assert status["purge"]["counter"] == before["purge"]["counter"] + 1
        assert here.light("node-a")["revision"][0] == 2  # the term of the second leader
        # What was durable is lost: members saw more than the operator knows.
        assert here.op.end() == 0
        deleted = plane.kubectl("delete", "secrets", "-n", "kvgrove-system", "-l", "kvgrove.dev/state")
        assert deleted.returncode == 0, deleted.stderr
        here.op.start()
        wait_for(lambda: here.status()["purge"]["counter"] > status["purge"]["counter"], "a purge above what was seen")
        wait_ready(plane, "pcn/bot")
        # Deleted while nobody is there, with its model.
        assert here.op.end() == 0
        here.delete("pcn", "bot")
        here.delete("mv", "m1")
        assert not here.is_gone("pcn", "bot")
        here.op.start()
        wait_for(lambda: here.is_gone("pcn", "bot") and here.is_gone("mv", "m1"), "the end of both")
        (event,) = here.events("ErasureConfirmed")
        assert "3 receipts" in event["message"]


@pytest.mark.timeout(600)
def test_of_two_leaders_for_a_moment_the_older_one_counts_for_nothing(own_control_plane: Plane, tmp_path: Path) -> None:
    with world(own_control_plane, tmp_path) as here:
        second = Operator(token(here.plane), tmp_path / "second", tmp_path / "models", port=here.op.port, light=True)
        assert here.op.process is not None
        second.start()
        wait_for(lambda: second.probed("/readyz"), "the second one to stand by")
        assert second.probed("/healthz")
        assert not second.leads()
        assert _term(here.plane) == 1
        here.op.process.send_signal(signal.SIGSTOP)
        try:
            lease = wait_for(lambda: _term(here.plane) == 2, "another leader")
            assert lease
            here.op.process.send_signal(signal.SIGCONT)
            assert here.op.process.wait(30) == 1
            assert "the Lease is held by" in here.op.log
            wait_for(second.leads, "the second leader to believe it")
            assert second.probed("/readyz")
            wait_for(lambda: all(here.light(node)["revision"][0] == 2 for node in NODES), "plans of the second leader")
            here.declare(epoch=3)
            wait_for(lambda: here.status()["purge"]["observedEpoch"] == 3, "a purge by the second leader")
        finally:
            if second.process is not None:
                second.process.kill()
                second.process.wait(30)
            print(second.log[-10_000:])


@pytest.mark.timeout(600)
def test_each_status_is_whole_and_about_one_generation_and_none_is_written_twice(
    own_control_plane: Plane, tmp_path: Path
) -> None:
    with world(own_control_plane, tmp_path) as here:
        with _watched(here.plane, tmp_path / "watch") as seen:
            here.declare(model="m2", epoch=2)
            wait_for(lambda: _promoted(here.plane, 2), "the other model")
            here.declare(model="m1", epoch=2)
            wait_for(lambda: _promoted(here.plane, 3), "the first model again")
            time.sleep(3)
            version, written = here.plane.get("pcn", "bot")["metadata"]["resourceVersion"], _written(here.op)
            time.sleep(8)
            assert here.plane.get("pcn", "bot")["metadata"]["resourceVersion"] == version
            assert _written(here.op) == written
        objects = seen()
        assert {each["status"]["observedGeneration"] for each in objects} == {1, 2, 3}
        for each in objects:
            about = {condition["observedGeneration"] for condition in each["status"]["conditions"]}
            assert about == {each["status"]["observedGeneration"]}
            assert each["status"]["observedGeneration"] <= each["metadata"]["generation"]
            assert len(each["status"]["conditions"]) == 8
        said = [(each["metadata"]["generation"], json.dumps(each["status"], sort_keys=True)) for each in objects]
        assert all(one != other for one, other in itertools.pairwise(said))


@pytest.mark.timeout(300)
def test_in_named_namespaces_it_needs_no_rights_elsewhere_and_looks_nowhere_else(
    own_control_plane: Plane, tmp_path: Path
) -> None:
    plane, models = own_control_plane, tmp_path / "models"
    apply_crds(plane)
    models.mkdir()
    for name in ("watched", "other"):
        assert plane.kubectl("create", "namespace", name).returncode == 0
    folder = MANIFESTS / "namespaced"
    apply(plane, "-f", str(folder / "rbac.yaml"))
    apply(plane, "-n", "watched", "-f", str(folder / "watched-namespace.yaml"))
    running = Operator(token(plane), tmp_path / "op", models, arguments=("--namespace", "watched"), light=True)
    running.start()
    try:
        apply(plane, "-f", "-", stdin=MODEL.format(name="m1", models=models))
        for name in ("watched", "other"):
            text = NAMESPACE.format(model="m1", epoch=1).replace("namespace: default", f"namespace: {name}")
            apply(plane, "-f", "-", stdin=text)
        wait_for(lambda: condition(plane, "pcn", "bot", "Ready", "-n", "watched"), "a status")
        wait_for(lambda: condition(plane, "mv", "m1", "Ready"), "a status of the model")
        assert not condition(plane, "pcn", "bot", "Ready", "-n", "other")
        assert plane.get("ds", "-n", "kvgrove-system")["items"]
        assert "403" not in running.log, "no right is missing"
        assert "forbidden" not in running.log.lower()
    finally:
        running.end()
        print(running.log[-10_000:])


def _promoted(plane: Plane, generation: int) -> bool:
    found = condition(plane, "pcn", "bot", "Promoted")
    return found.get("status") == "True" and found["observedGeneration"] == generation


@contextmanager
def _watched(plane: Plane, file: Path) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """Everything that a watch of the namespace tells meanwhile; ask when it is over."""
    command = [str(plane.settings.programs / "kubectl"), "get", "pcn", "bot", "--watch", "-o", "json"]
    with file.open("wb") as out:
        process = subprocess.Popen(command, env={**os.environ, "KUBECONFIG": str(plane.kubeconfig)}, stdout=out)

    def seen() -> list[dict[str, Any]]:
        text, found, at, decoder = file.read_text(), [], 0, json.JSONDecoder()
        while (at := text.find("{", at)) >= 0:
            value, at = decoder.raw_decode(text, at)
            found.append(value)
        return found

    try:
        yield seen
    finally:
        process.kill()
        process.wait(30)


def _secrets(plane: Plane) -> list[dict[str, Any]]:
    return list(plane.get("secrets", "-n", "kvgrove-system", "-l", "kvgrove.dev/state=namespace")["items"])


def _destroyed(plane: Plane) -> list[str]:
    """Names of stored namespaces that still have a secret."""
    states = [json.loads(base64.b64decode(each["data"]["state"])) for each in _secrets(plane)]
    return [each["state"]["name"] for each in states if each["state"].get("secret")]


def _term(plane: Plane) -> int:
    return int(plane.get("lease", "kvgrove-operator", "-n", "kvgrove-system")["spec"]["leaseTransitions"])


def _written(op: Operator) -> str:
    text = httpx.get(f"http://127.0.0.1:{op.metrics}/metrics", timeout=5).text
    return next(line for line in text.splitlines() if line.startswith("kvgrove_operator_status_writes_total"))
