"""One world that is disturbed in one way after the other: cut off, purged, wiped, restored; and looked at by people.

The tests share a control plane, an operator and three nodes without engines. Each leaves the namespace ``default/bot``
Ready behind; the last one takes etcd back to an earlier moment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from conftest import CRDS
from controlplane.plane import Plane
from operator_rig import OWN, apply, condition, wait_for, wait_ready
from operator_world import MODEL, NODES, World, complete, uid_of, with_reason, world
from ports import free_port
from tcp_proxy import TcpProxy

from kvgrove_operator.work_queue import Pace

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def cable() -> Iterator[tuple[TcpProxy, int]]:
    """What the nodes reach the operator through, and the port of the operator."""
    port = free_port()
    proxy = TcpProxy(("127.0.0.1", port))
    yield proxy, port
    proxy.close()


@pytest.fixture(scope="module")
def here(
    control_plane_programs: Path, cable: tuple[TcpProxy, int], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    folder, (proxy, port) = tmp_path_factory.mktemp("trouble"), cable
    with (
        Plane.in_folder(folder / "plane", programs=control_plane_programs) as plane,
        world(plane, folder, "--advertise", f"tcp://127.0.0.1:{proxy.port}", port=port) as made,
    ):
        yield made


def purge(world: World, name: str = "bot") -> dict[str, Any]:
    """Asks for one, and gives the status in which it is complete."""
    epoch = _epoch(world, name) + 1
    world.declare(epoch=epoch, name=name)
    return dict(
        wait_for(lambda: (s := world.status(name))["purge"]["observedEpoch"] == epoch and complete(s) and s, name)
    )


def _epoch(world: World, name: str = "bot") -> int:
    return int(world.plane.get("pcn", name)["spec"]["purge"]["epoch"])


def test_cor_02_cor_03_an_invalidation_waits_for_a_node_that_hangs_until_it_cannot_serve_and_counts_it_apart(
    here: World,
) -> None:
    uid, counter = uid_of(here.plane), here.status()["purge"]["counter"]
    here.agent.pause("node-b")
    here.declare(epoch=_epoch(here) + 1)
    pending = wait_for(
        lambda: (s := here.status())["purge"]["counter"] > counter and s["invalidation"]["confirmed"] == 2 and s,
        "two of three nodes to confirm",
    )
    if pending["invalidation"]["pending"]:  # its lease has not run out yet
        assert not complete(pending)
        assert condition(here.plane, "pcn", "bot", "Ready")["status"] == "False"
    ended = wait_for(lambda: (s := here.status())["invalidation"]["expired"] == 1 and s, "the end of its lease")
    assert complete(ended), "it can read nothing any more, whatever it does"
    assert (ended["invalidation"]["confirmed"], ended["invalidation"]["pending"]) == (2, 0)
    not_ready = wait_for(lambda: with_reason(here.plane, "pcn", "bot", "Ready", "NodeUnreachable"), "who is missing")
    assert "node-b" in not_ready["message"]
    here.agent.resume("node-b")
    newest = here.status()["purge"]["counter"]
    seen = wait_for(lambda: _leased(here, "node-b", uid, at_least=newest), "a lease under the newest fence")
    assert all(fence >= newest for fence in seen)
    wait_ready(here.plane, "pcn/bot")


def _leased(world: World, node: str, uid: str, *, at_least: int) -> list[int]:
    """Purge counters under which the node was seen to hold a lease; empty until it holds one. Asked of the node."""
    told = world.light(node)
    if uid not in told["leased"]:
        return []
    fence = told["fences"][uid][0]
    assert fence >= at_least, "a lease under an older fence: it could serve what was purged"
    return [fence]


def test_i3_nodes_that_are_cut_off_hold_no_lease_when_a_purge_is_complete_and_take_none_before_they_have_heard_of_it(
    here: World, cable: tuple[TcpProxy, int]
) -> None:
    uid = uid_of(here.plane)
    cable[0].cut()
    status = purge(here)
    assert status["invalidation"]["pending"] == 0
    assert status["invalidation"]["expired"] == len(NODES), "nobody could be asked"
    assert all(uid not in here.light(node)["leased"] for node in NODES)
    cable[0].mend()
    counter = status["purge"]["counter"]
    for node in NODES:
        wait_for(lambda node=node: _leased(here, node, uid, at_least=counter), "a lease under the newest fence")
    wait_ready(here.plane, "pcn/bot")


def test_ops_13_a_purge_of_one_namespace_is_none_of_another(here: World) -> None:
    here.declare(name="other")
    wait_ready(here.plane, "pcn/other")
    uid, before = uid_of(here.plane, "other"), here.status("other")
    fences = {node: here.light(node)["fences"][uid] for node in NODES}
    purge(here)
    assert {node: here.light(node)["fences"][uid] for node in NODES} == fences
    assert here.status("other")["purge"] == before["purge"]
    assert here.status("other")["invalidation"] == before["invalidation"]
    here.delete("pcn", "other")
    wait_for(lambda: here.is_gone("pcn", "other"), "the end of the other one")
    assert condition(here.plane, "pcn", "bot", "Ready")["status"] == "True"


def test_i3_a_purge_epoch_lowered_by_a_revert_is_a_purge_and_counters_never_fall(here: World) -> None:
    raised = purge(here)
    here.declare(epoch=1)
    wait_for(lambda: here.status()["purge"]["observedEpoch"] == 1 and complete(here.status()), "the purge of a revert")
    assert here.status()["purge"]["counter"] > raised["purge"]["counter"]
    assert here.status()["purge"]["nonce"] != raised["purge"]["nonce"]


def test_ops_07_annotations_and_status_that_are_wiped_or_carried_over_mean_nothing(here: World) -> None:
    plane, before = here.plane, here.status()
    wiped = plane.kubectl("patch", "pcn", "bot", "--type=merge", "-p", '{"metadata": {"annotations": null}}')
    assert wiped.returncode == 0, wiped.stderr
    assert purge(here)["purge"]["counter"] == before["purge"]["counter"] + 1
    backup = plane.get("pcn", "bot")
    old = uid_of(plane)
    here.delete("pcn", "bot")
    wait_for(lambda: here.is_gone("pcn", "bot"), "the end of the namespace")
    for field in ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "finalizers"):
        backup["metadata"].pop(field, None)
    apply(plane, "-f", "-", stdin=json.dumps(backup))
    wait_ready(plane, "pcn/bot")
    assert uid_of(plane) != old
    assert here.status()["purge"]["nonce"] != backup["status"]["purge"]["nonce"], "nothing of the old one can be formed"
    wait_for(lambda: all(old not in here.light(node)["fences"] for node in NODES), "the old one to be erased")


def test_a_deletion_needs_no_model_version_and_one_that_is_used_is_not_deleted(here: World) -> None:
    plane = here.plane
    apply(plane, "-f", "-", stdin=MODEL.format(name="m9", models=here.folder / "models"))
    here.declare(model="m9", name="orphan")
    wait_ready(plane, "pcn/orphan")
    here.delete("mv", "m9")
    refused = wait_for(lambda: with_reason(plane, "mv", "m9", "Ready", "InUse"), "a refused deletion")
    assert "default/orphan" in refused["message"]
    forced = plane.kubectl("patch", "mv", "m9", "--type=merge", "-p", '{"metadata": {"finalizers": []}}')
    assert forced.returncode == 0, forced.stderr
    wait_for(lambda: here.is_gone("mv", "m9"), "the end of the model, whatever was said")
    here.delete("pcn", "orphan")
    wait_for(lambda: here.is_gone("pcn", "orphan"), "the end of a namespace without its model")
    receipts = [each for each in here.events("ErasureConfirmed") if each["involvedObject"]["name"] == "orphan"]
    assert "3 receipts" in receipts[0]["message"]


def test_i8_a_node_that_was_taken_out_is_shredded_and_wipes_itself_should_it_come_back(here: World) -> None:
    plane = here.plane
    here.declare(name="doomed")
    wait_ready(plane, "pcn/doomed")
    uid, boot = uid_of(plane, "doomed"), here.light("node-c")["boot"]
    here.agent.pause("node-c")
    here.delete("pcn", "doomed")
    wait_for(lambda: with_reason(plane, "pcn", "doomed", "ErasureVerified", "NodeUnreachable"), "an unreachable node")
    assert "kvgrove.dev/evidence" in plane.get("pcn", "doomed")["metadata"]["finalizers"]
    series = 'kvgrove_operator_erasure_age_seconds{namespace="default/doomed"}'
    assert wait_for(lambda: _series(here, series) > 0, "what the alert looks at")
    assert plane.kubectl("delete", "node", "node-c").returncode == 0
    wait_for(lambda: here.is_gone("pcn", "doomed"), "the end of the namespace")
    gone = [each for each in here.events("ErasureConfirmed") if each["involvedObject"]["name"] == "doomed"]
    assert "2 receipts, 1 gone, shredded" in gone[0]["message"]
    assert uid in here.light("node-c")["fences"], "it has heard nothing yet"
    here.agent.resume("node-c")
    here.agent.boot("node-c")
    wait_for(lambda: (told := here.light("node-c")) and uid not in told["fences"], "the node that came back to wipe it")
    told = here.light("node-c")
    assert uid not in told["leased"]
    assert told["boot"] == boot, "the very process that had hung"
    wait_ready(plane, "pcn/bot")


def _series(world: World, name: str) -> float:
    text = httpx.get(f"http://127.0.0.1:{world.op.metrics}/metrics", timeout=30).text
    return next((float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name)), 0.0)


def test_people_see_and_steer_it_by_a_plugin_of_kubectl(here: World) -> None:
    folder = here.folder / "plugin"
    folder.mkdir()
    plugin = folder / "kubectl-kvgrove"
    plugin.write_text(f'#!/bin/sh\nexec {sys.executable} -m kvgrove_cli.kubectl_plugin "$@"\n')
    plugin.chmod(0o755)

    def kvgrove(*arguments: str, code: int = 0) -> str:
        done = subprocess.run(
            [str(here.plane.settings.programs / "kubectl"), "kvgrove", *arguments],
            env={
                **os.environ,
                "KUBECONFIG": str(here.plane.kubeconfig),
                "PATH": f"{folder}:{os.environ['PATH']}",
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout if code == 0 else done.stderr

    headings, line = kvgrove("status").splitlines()
    assert headings.split()[:5] == ["NAME", "READY", "PHASE", "MODEL", "GENERATION"]
    assert line.split()[:4] == ["bot", "True", "Ready", "m1"]
    assert kvgrove("status", "-A").splitlines()[1].split()[0] == "default"
    (shown,) = json.loads(kvgrove("status", "-o", "json"))["items"]
    assert shown["status"]["phase"] == "Ready"
    assert "InvalidationComplete" in kvgrove("status", "bot")
    assert {line.split()[0] for line in kvgrove("nodes").splitlines()[1:]} >= set(NODES)

    counter = here.status()["purge"]["counter"]
    assert "3 confirmed" in kvgrove("purge", "bot")
    assert here.status()["purge"]["counter"] == counter + 1

    assert "successfully rolled out" in kvgrove("rollout", "status", "bot")
    assert "m1" in kvgrove("rollout", "history", "bot")
    assert kvgrove("rollout", "undo", "bot", "--to", "m2").strip().endswith("rolled back")
    assert here.plane.get("pcn", "bot")["spec"]["modelVersionRef"]["name"] == "m2"
    assert kvgrove("rollout", "pause", "bot").strip().endswith("paused")
    wait_for(lambda: here.status().get("phase") == "Suspended", "the pause")
    assert "is paused already" in kvgrove("rollout", "pause", "bot", code=2)
    assert kvgrove("rollout", "resume", "bot").strip().endswith("resumed")
    assert kvgrove("rollout", "undo", "bot", "--to", "m1").strip().endswith("rolled back")
    assert "no generation waits" in kvgrove("rollout", "approve", "bot", code=2)
    assert "not found" in kvgrove("rollout", "status", "nobody", code=1)
    wait_ready(here.plane, "pcn/bot")


def test_ops_08_five_thousand_documents_are_refused_with_their_bound_and_harm_nobody(here: World) -> None:
    documents = [{"name": f"d{number}", "version": "1", "text": "x" * 40} for number in range(5000)]
    spec = {"modelVersionRef": {"name": "m1"}, "documents": documents}
    metadata = {"name": "huge", "namespace": "default"}
    huge = {"apiVersion": "kvgrove.dev/v1alpha1", "kind": "PromptCacheNamespace", "metadata": metadata, "spec": spec}
    refused = here.plane.kubectl("create", "-f", "-", stdin=json.dumps(huge))
    assert refused.returncode != 0
    assert "spec.documents" in refused.stderr
    assert "must have at most" in refused.stderr
    assert here.is_gone("pcn", "huge")
    assert condition(here.plane, "pcn", "bot", "Ready")["status"] == "True"


def test_ops_06_what_fails_is_retried_to_its_bound_then_said_and_heals_with_the_next_event(here: World) -> None:
    plane = here.plane
    rights = plane.get("role", "kvgrove-operator", "-n", OWN)["rules"]

    def allow(rules: list[dict[str, Any]]) -> None:
        patch = json.dumps([{"op": "replace", "path": "/rules", "value": rules}])
        done = plane.kubectl("patch", "role", "kvgrove-operator", "-n", OWN, "--type=json", "-p", patch)
        assert done.returncode == 0, done.stderr

    def failed() -> int:
        return int(_series(here, "kvgrove_operator_reconcile_failures_total"))

    def exhausted() -> int:
        return int(_series(here, "kvgrove_operator_reconcile_exhausted_total"))

    def placed(model: str) -> bool:
        sets = plane.get("daemonsets", "-n", OWN)["items"]
        return any(owner["name"] == model for each in sets for owner in each["metadata"]["ownerReferences"])

    def publish(model: str) -> int:
        """A model whose DaemonSet the operator may not write; how many attempts had failed before."""
        before = failed()
        allow([rule for rule in rights if rule["resources"] != ["daemonsets"]])
        apply(plane, "-f", "-", stdin=MODEL.format(name=model, models=here.folder / "models"))
        return before

    given_up = exhausted()
    before = publish("m7")
    wait_for(lambda: failed() >= before + 3, "three attempts that fail")
    allow(rights)
    wait_for(lambda: placed("m7"), "one that does not")
    assert exhausted() == given_up, "nobody was told of a trouble that passed"

    before = publish("m8")
    stalled = wait_for(lambda: with_reason(plane, "mv", "m8", "Stalled", "RetriesExhausted"), "the end of its attempts")
    assert "daemonsets" in stalled["message"]
    assert (failed() - before, exhausted() - given_up) == (Pace().attempts, 1), "as often as it says, and no more"
    assert condition(plane, "pcn", "bot", "Ready")["status"] == "True", "it is nobody else's trouble"
    allow(rights)
    assert not placed("m8"), "it has given up"
    assert plane.kubectl("label", "node", "node-a", "kvgrove.test/event=any").returncode == 0
    wait_for(lambda: placed("m8"), "the next event to be its next chance")
    wait_for(lambda: condition(plane, "mv", "m8", "Stalled")["status"] == "False", "its status to say so")
    assert exhausted() == given_up + 1
    for model in ("m7", "m8"):
        here.delete("mv", model)
        wait_for(lambda model=model: here.is_gone("mv", model), f"the end of {model}")


def test_definitions_older_than_the_operator_fail_closed_until_those_of_its_release_are_applied(here: World) -> None:
    plane, crd = here.plane, "promptcachenamespaces.kvgrove.dev"
    path = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/events"
    fence = here.light("node-a")["fences"][uid_of(plane)]
    older = plane.kubectl("patch", "crd", crd, "--type=json", "-p", json.dumps([{"op": "remove", "path": path}]))
    assert older.returncode == 0, older.stderr
    assert here.op.end() == 0
    here.op.start()  # as it does on an upgrade that forgot the definitions
    refused = wait_for(lambda: with_reason(plane, "pcn", "bot", "Ready", "CrdOutdated"), "a refusal")
    assert "PromptCacheNamespace.spec.events" in refused["message"]
    assert "apply the CRDs of this release" in refused["message"]
    assert condition(plane, "pcn", "bot", "Stalled")["status"] == "True"
    wait_for(lambda: with_reason(plane, "mv", "m1", "Ready", "CrdOutdated"), "a refusal of the model")
    assert plane.get("ds", "-n", "kvgrove-system")["items"], "no workload goes because of it"
    assert here.light("node-a")["fences"][uid_of(plane)] >= fence, "what was invalidated stays so"
    applied = plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRDS))
    assert applied.returncode == 0, applied.stderr
    wait_ready(plane, "pcn/bot")


def test_i3_an_etcd_that_was_restored_from_a_backup_makes_nothing_old_readable(here: World) -> None:
    plane, backup = here.plane, here.folder / "etcd-backup"
    plane.backup(backup)
    newest = [purge(here) for _ in range(2)][-1]["purge"]
    nonces = {newest["nonce"], here.status()["purge"]["nonce"]}
    plane.restore(backup)

    def above() -> bool:
        if here.op.process is not None and here.op.process.poll() is not None:
            here.op.start()  # as its Deployment would: it ends where its memory was changed under it
        found = plane.kubectl("get", "pcn", "bot", "-o", "json")
        if found.returncode:
            return False
        purge = json.loads(found.stdout)["status"]["purge"]
        return bool(purge["counter"] > newest["counter"] and purge["nonce"] not in nonces)

    wait_for(above, "a purge above what members saw")
    counter, uid = here.status()["purge"]["counter"], uid_of(plane)
    for node in NODES:
        wait_for(lambda node=node: here.light(node)["fences"].get(uid, [0])[0] >= counter, "its fence")
        wait_for(lambda node=node: _leased(here, node, uid, at_least=counter), "a lease under it")
