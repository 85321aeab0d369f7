"""Two kinds of nodes, and a model version for each: real daemons on a real API server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import apply_crds
from controlplane.plane import Plane
from gitops_rig import NAMESPACE, Git, Story, model_root
from operator_rig import Gateway, condition, gateway, nodes, operator, wait_for, wait_ready

SMALL, LARGE = "small", "large"
OTHER = "default/shop"


def answered_by(front: Gateway, namespace: str, number: int = 8) -> set[str]:
    """Generations of as many new conversations, each of which is answered."""
    found = [front.chat(namespace, f"What about order {each}?") for each in range(number)]
    assert [each.status_code for each in found] == [200] * number
    return {each.json()["kvgrove"]["generation"] for each in found}


@pytest.mark.timeout(600)
def test_each_daemon_holds_the_models_of_its_placement_and_namespaces_move_between_them(
    own_control_plane: Plane, tmp_path: Path
) -> None:
    plane = own_control_plane
    apply_crds(plane)
    git = Git(plane, model_root(tmp_path / "models"))

    def held(node: str) -> list[str]:
        status = plane.get("cachenode", node).get("status", {})
        return [each["modelVersion"] for each in status.get("generations", [])]

    with (
        nodes(plane, tmp_path / "nodes", "node-a", "node-b"),
        operator(plane, tmp_path / "op", git.models) as op,
    ):
        # given two kinds of nodes, a model version for each, and a namespace on each of these
        for node, pool in (("node-a", SMALL), ("node-b", LARGE)):
            assert plane.kubectl("label", "node", node, f"pool={pool}").returncode == 0
        git.publish("m1", nodeSelector={"pool": SMALL})
        git.publish("m2", nodeSelector={"pool": LARGE})
        git.commit(rollout={"steps": [{"weight": 50, "pause": "2s"}], "window": "1s"}, documents=[])
        git.declare("shop", git.spec | {"modelVersionRef": {"name": "m2"}})
        wait_ready(plane, "mv/m1", "mv/m2", "pcn/bot", "pcn/shop")
        # then each daemon holds its own, and requests go where their model is
        wait_for(lambda: (held("node-a"), held("node-b")) == (["m1"], ["m2"]), "each with its model")
        with gateway(plane, tmp_path / "gateway", op.port) as front:
            wait_for(lambda: front.chat(OTHER, "Hello?").status_code == 200, "an answer")
            here = Story(plane, git, front, op)
            m1, m2 = here.generation("m1"), here.generation("m2")
            for namespace, expected in ((NAMESPACE, m1), (OTHER, m2)):
                (by,) = answered_by(front, namespace)
                assert expected.startswith(by)

            # when one of them moves to the other kind of nodes
            git.move_to("m2")
            wait_for(
                lambda: (now := here.status)["activeGeneration"] == m2 and now["rollout"]["phase"] == "Promoted", "m2"
            )
            # then it is warm there, and what it left behind is erased
            wait_ready(plane, "pcn/bot")
            (by,) = answered_by(front, NAMESPACE)
            assert m2.startswith(by)
            wait_for(lambda: condition(plane, "pcn", "bot", "ErasureVerified").get("status") == "True", "the erasure")

        # when a third one selects nodes that have a daemon, in other words
        boot = plane.get("cachenode", "node-b")["status"]["bootId"]
        git.publish("m4", nodeSelector={"pool": LARGE, "kubernetes.io/hostname": "node-b"})
        said = wait_for(
            lambda: "not scheduled" in (now := condition(plane, "mv", "m4", "Ready")).get("message", "") and now,
            "the scheduler's reason",
        )
        # then it is told why that cannot be, and nobody else is disturbed
        assert (said["status"], said["reason"]) == ("False", "WaitingForNodes")
        assert "anti-affinity" in said["message"]
        # when one of the same nodes wants another daemon there
        git.publish("m3", nodeSelector={"pool": LARGE}, args=["--threads", "1"])
        # then it is loaded by the one that is there, which goes on, and the older one tells of the newer one's wish
        wait_ready(plane, "mv/m3")
        wait_for(lambda: "of m3 apply" in condition(plane, "mv", "m2", "Ready")["message"], "the word of m2")
        assert plane.get("cachenode", "node-b")["status"]["bootId"] == boot
        assert condition(plane, "pcn", "bot", "Ready")["status"] == "True", json.dumps(here.status)
