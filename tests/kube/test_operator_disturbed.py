"""What happens around the operator: an API server that goes, objects that are replaced, CRDs of another release."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from controlplane.plane import Plane
from operator_rig import condition, wait_for, wait_ready
from operator_world import NAMESPACE, complete, uid_of, with_reason, world


@pytest.mark.timeout(600)
def test_ops_04_ops_07_a_lost_watch_and_a_replaced_object_end_in_what_is_declared(
    own_control_plane: Plane, tmp_path: Path
) -> None:
    with world(own_control_plane, tmp_path) as here:
        plane = here.plane
        plane["kube-apiserver"].signal(signal.SIGKILL)
        plane.restart("kube-apiserver")
        here.declare(epoch=2)
        status = wait_for(lambda: (s := here.status())["purge"]["observedEpoch"] == 2 and complete(s) and s, "a purge")
        assert here.op.process is not None
        assert here.op.process.poll() is None, "it lived through that"
        before = uid_of(plane)
        replaced = plane.kubectl("replace", "--force", "-f", "-", stdin=NAMESPACE.format(model="m1", epoch=2))
        assert replaced.returncode == 0, replaced.stderr
        assert uid_of(plane) != before
        wait_ready(plane, "pcn/bot")
        assert here.status()["purge"]["nonce"] != status["purge"]["nonce"], "nothing of the old one can be formed"


@pytest.mark.timeout(600)
def test_a_lease_that_was_lost_is_taken_above_every_term_that_members_know(
    own_control_plane: Plane, tmp_path: Path
) -> None:
    with world(own_control_plane, tmp_path) as here:
        plane = here.plane
        for term in (2, 3):  # the second time a Lease is made anew, whose first term members have long passed
            assert here.op.end() == 0
            deleted = plane.kubectl("delete", "lease", "kvgrove-operator", "-n", "kvgrove-system")
            assert deleted.returncode == 0, deleted.stderr
            here.op.start()
            wait_for(lambda term=term: here.light("node-a")["revision"][0] == term, f"a plan of term {term}")
        here.declare(epoch=2)
        wait_for(lambda: (s := here.status())["purge"]["observedEpoch"] == 2 and complete(s), "a purge")


@pytest.mark.timeout(600)
def test_ops_03_other_owners_of_the_object_are_left_alone(own_control_plane: Plane, tmp_path: Path) -> None:
    with world(own_control_plane, tmp_path) as here:
        plane = here.plane
        finalizers = plane.get("pcn", "bot")["metadata"]["finalizers"]
        theirs = {"metadata": {"finalizers": [*finalizers, "example.com/theirs"], "annotations": {"a": "b"}}}
        patched = plane.kubectl("patch", "pcn", "bot", "--type=merge", "-p", json.dumps(theirs))
        assert patched.returncode == 0, patched.stderr
        here.delete("pcn", "bot")
        wait_for(lambda: plane.get("pcn", "bot")["metadata"]["finalizers"] == ["example.com/theirs"], "ours to go")
        assert plane.get("pcn", "bot")["metadata"]["annotations"]["a"] == "b"
        freed = plane.kubectl("patch", "pcn", "bot", "--type=merge", "-p", '{"metadata": {"finalizers": []}}')
        assert freed.returncode == 0, freed.stderr


@pytest.mark.timeout(600)
def test_ops_10_what_a_newer_release_declared_is_not_guessed_and_harms_nobody(
    own_control_plane: Plane, tmp_path: Path
) -> None:
    with world(own_control_plane, tmp_path) as here:
        plane = here.plane
        path = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/future"
        newer = json.dumps([{"op": "add", "path": path, "value": {"type": "string"}}])
        crd = "promptcachenamespaces.kvgrove.dev"
        patched = plane.kubectl("patch", "crd", crd, "--type=json", "-p", newer)
        assert patched.returncode == 0, patched.stderr
        text = NAMESPACE.format(model="m1", epoch=1).replace("name: bot", "name: newer") + "  future: soon\n"
        wait_for(lambda: plane.kubectl("apply", "-f", "-", stdin=text).returncode == 0, "the newer CRD")
        kept = plane.get("pcn", "newer")["spec"]
        assert kept.get("future") == "soon"
        found = wait_for(lambda: with_reason(plane, "pcn", "newer", "Stalled", "InvalidSpec"), "a refusal")
        assert "spec.future" in found["message"]
        assert condition(plane, "pcn", "newer", "Ready")["status"] == "False"
        assert condition(plane, "pcn", "bot", "Ready")["status"] == "True"
        counter = here.status()["purge"]["counter"]
        text = NAMESPACE.format(model="m1", epoch=9) + "  future: soon\n"
        assert plane.kubectl("apply", "-f", "-", stdin=text).returncode == 0
        wait_for(lambda: with_reason(plane, "pcn", "bot", "Stalled", "InvalidSpec"), "a refusal of the change")
        assert here.status()["purge"]["counter"] == counter, "what was in force stays"
        assert here.status()["observedGeneration"] == 1
        newer_model = plane.kubectl("patch", "crd", "modelversions.kvgrove.dev", "--type=json", "-p", newer)
        assert newer_model.returncode == 0, newer_model.stderr
        future = '{"spec": {"future": "soon"}}'
        wait_for(lambda: _patched(plane, future) == "soon", "the newer CRD of models")
        wait_for(lambda: with_reason(plane, "mv", "m2", "Stalled", "InvalidSpec"), "a refusal of the model")
        assert plane.get("ds", "-n", "kvgrove-system")["items"], "no workload goes because a model cannot be read"


def _patched(plane: Plane, patch: str) -> str | None:
    """What the API server keeps of a field that it may not know yet."""
    plane.kubectl("patch", "mv", "m2", "--type=merge", "-p", patch)
    future: str | None = plane.get("mv", "m2")["spec"].get("future")
    return future
