"""The operator is killed between every two effects of a rollout; the end state is always the declared one (OPS-14)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from controlplane.plane import Plane
from operator_rig import apply, wait_for
from operator_world import NODES, World, world

from kvgrove_operator.fault_points import VARIABLE, FaultPoint

FAULTS = [
    *((point, 1) for point in FaultPoint),
    (FaultPoint.STATE_SAVED, 3),
    (FaultPoint.PLAN_SENT, 4),
]
"""Every point, and those at the heart of the shift later in it too."""
STEPS = [{"weight": 10, "pause": "1s"}, {"weight": 50, "pause": "1s"}]


def commit(here: World, number: int, model: str) -> None:
    """One change: another version, and a namespace that nobody has held yet."""
    spec: dict[str, Any] = {
        "modelVersionRef": {"name": model},
        "freshness": {"lease": "3s"},
        "prefixes": [{"name": "support", "version": "1", "text": "You help people with bicycles."}],
        "rollout": {"steps": STEPS, "window": "1s"},
    }
    for name in ("bot", f"extra-{number}"):
        metadata = {"name": name, "namespace": "default"}
        item = {
            "apiVersion": "kvgrove.dev/v1alpha1",
            "kind": "PromptCacheNamespace",
            "metadata": metadata,
            "spec": spec,
        }
        apply(here.plane, "-f", "-", stdin=json.dumps(item))


def is_at(here: World, model: str, uid: str) -> bool:
    """Whether all that is declared is in force, what was before is erased, and every node serves this and no more."""
    status = here.status()
    conditions = {each["type"]: each["status"] for each in status.get("conditions", [])}
    generation = here.plane.get("mv", model)["status"].get("generation")
    return (
        status["rollout"]["phase"] == "Promoted"
        and status["activeGeneration"] == generation
        and "previousGeneration" not in status
        and all(conditions[each] == "True" for each in ("Ready", "Promoted", "InvalidationComplete", "ErasureVerified"))
        and all(here.light(node).get("serving", {}).get(uid) == [model] for node in NODES)
    )


@pytest.mark.timeout(900)
def test_ops_14_an_operator_that_is_killed_between_any_two_effects_leaves_what_is_declared(
    own_control_plane: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    armed = tmp_path / "die-at"
    monkeypatch.setenv(VARIABLE, str(armed))
    with world(own_control_plane, tmp_path) as here:
        uid = here.plane.get("pcn", "bot")["metadata"]["uid"]
        receipts = here.status()["erasure"]["revision"]
        for number, (point, times) in enumerate(FAULTS):
            model = ("m2", "m1")[number % 2]
            armed.write_text(f"{point.value} {times}")
            commit(here, number, model)
            process = here.op.process
            assert process is not None
            wait_for(lambda process=process: process.poll() is not None, f"death at {point}")
            assert not armed.exists(), "it died of something else"
            here.op.start()
            wait_for(lambda model=model: is_at(here, model, uid), f"{model} after a death at {point}")
            erased = here.status()["erasure"]["revision"]
            assert erased > receipts, "what was given up is erased, each time"
            receipts = erased
