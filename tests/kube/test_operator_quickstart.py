"""The first thing people do: apply the CRDs, the operator and an example, wait, and ask."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import apply_crds
from controlplane.plane import Plane
from operator_rig import OWN, QUICKSTART, apply, gateway, model_root, nodes, operator, wait_for, wait_ready
from tiny_models import cached_tiny_model

NAMESPACE = "default/support-bot"


@pytest.mark.timeout(600)
def test_an_example_applied_to_an_empty_cluster_gets_ready_and_its_second_request_reuses(
    own_control_plane: Plane, tmp_path: Path
) -> None:
    plane = own_control_plane
    apply_crds(plane)
    models = model_root(tmp_path / "models", cached_tiny_model("llama"))
    with nodes(plane, tmp_path / "nodes", "node-a", "node-b", "node-c"), operator(plane, tmp_path / "op", models) as op:
        wait_for(op.leads, "a leader")
        apply(plane, "-f", str(QUICKSTART))
        wait_ready(plane, "pcn/support-bot")
        wait_ready(plane, "mv/smollm2-135m-v1")
        with gateway(plane, tmp_path / "gateway", op.port) as front:
            first = wait_for(lambda: _answered(front, "May I return a helmet?"), "an answer")
            again = front.chat(NAMESPACE, "May I return a helmet?", kvgrove={"prefix": "support"}).json()
        assert first["usage"]["prompt_tokens_details"]["cached_tokens"] > 0  # warmed before anybody asked
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
        namespace = plane.get("pcn", "support-bot")
        assert namespace["status"]["observedGeneration"] == namespace["metadata"]["generation"]
        assert "annotations" not in namespace["metadata"] or not [
            each for each in namespace["metadata"]["annotations"] if "kopf" in each
        ]
        records = {each["metadata"]["name"]: each for each in plane.get("cachenodes")["items"]}
        assert {"node-a", "node-b", "node-c"} <= set(records)
        secrets = plane.get("secrets", "-n", OWN, "-l", "kvgrove.dev/state=namespace")["items"]
        assert len(secrets) == 1
        assert plane.kubectl("delete", "pcn", "support-bot", "--wait=false").returncode == 0
        wait_for(lambda: "NotFound" in plane.kubectl("get", "pcn", "support-bot").stderr, "real daemons' receipts")
        (event,) = [each for each in plane.get("events")["items"] if each["reason"] == "ErasureConfirmed"]
        assert "receipts" in event["message"]


def _answered(front: object, question: str) -> object:
    answer = front.chat(NAMESPACE, question, kvgrove={"prefix": "support"})  # type: ignore[attr-defined]
    return answer.json() if answer.status_code == 200 else None
