"""The operator is killed again and again while a document is withdrawn in mid-rollout, and while a rollout is reverted.

Real daemons, a real gateway, and somebody who asks for the document all the time (OPS-14, I3).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from controlplane.plane import Plane
from gitops_rig import DOCUMENT, HOUR, NAMESPACE, Story, story
from operator_rig import Gateway, wait_for

from kvgrove_operator.fault_points import VARIABLE, FaultPoint

POLICY = {"kvgrove": {"documents": ["policy"]}}
IN_FORCE = ("Ready", "Promoted", "InvalidationComplete", "ErasureVerified")


class Asker:
    """Asks for the document for as long as it lives, as a new conversation each time."""

    def __init__(self, front: Gateway) -> None:
        self._front = front
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self.heard: list[tuple[float, int]] = []
        """When each was sent (monotonic), and the status of its answer."""

    def since(self, moment: float) -> list[int]:
        return [status for sent, status in list(self.heard) if sent > moment]

    def _ask(self) -> None:
        number = 0
        while not self._stop.wait(0.2):
            number += 1
            sent = time.monotonic()
            try:
                answer = self._front.chat(NAMESPACE, f"May I return {number}?", max_tokens=1, **POLICY)
            except httpx.TransportError:
                continue
            self.heard.append((sent, answer.status_code))

    @classmethod
    @contextmanager
    def asking(cls, front: Gateway) -> Iterator[Asker]:
        made = cls(front)
        made._thread.start()
        try:
            yield made
        finally:
            made._stop.set()
            made._thread.join()


@contextmanager
def death(here: Story, armed: Path, point: FaultPoint, part: str) -> Iterator[None]:
    """The operator passes ``point`` for the first time after what is committed, is killed there, and another starts.

    ``part``: of the story, for the name of another namespace. No member holds that yet, and it gets Ready, so that the
    operator surely passes the points about records and Events.
    """
    armed.write_text(f"{point.value} 1")
    yield
    if point in (FaultPoint.EVENT_WRITTEN, FaultPoint.RECORD_TO_WRITE, FaultPoint.RECORD_WRITTEN):
        here.git.declare(f"{part}-{point}", {"modelVersionRef": {"name": "m1"}, "freshness": {"lease": "5s"}})
    process = here.op.process
    assert process is not None
    wait_for(lambda: process.poll() is not None, f"death at {point}")
    assert not armed.exists(), "it died of something else"
    here.op.start()


def conditions(status: dict[str, Any]) -> dict[str, str]:
    return {each["type"]: each["status"] for each in status.get("conditions", [])}


def withdrawn(status: dict[str, Any], revision: int) -> bool:
    return status["documentRevision"] > revision and conditions(status)["InvalidationComplete"] == "True"


def is_back(status: dict[str, Any], generation: str, receipts: int) -> bool:
    """Whether the old one serves alone, all that was declared is in force, and the new one's blocks are erased."""
    found = conditions(status)
    return (
        status["rollout"]["phase"] == "RolledBack"
        and status["activeGeneration"] == status["desiredGeneration"] == generation
        and "previousGeneration" not in status
        and not status.get("documents")
        and status["erasure"]["revision"] > receipts
        and all(found[each] == "True" for each in IN_FORCE)
    )


@pytest.mark.timeout(1800)
def test_ops_14_i3_killed_in_mid_withdrawal_and_in_mid_revert_it_ends_as_declared_and_serves_no_withdrawn_text(
    own_control_plane: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    armed = tmp_path / "die-at"
    monkeypatch.setenv(VARIABLE, str(armed))
    # One identity for all its lives, as in one Pod: whoever comes next need not wait for the Lease to run out.
    with story(own_control_plane, tmp_path, "--identity", "operator-0") as here, Asker.asking(here.front) as asker:
        git = here.git
        git.publish("m2")
        m1, m2 = here.generation("m1"), here.generation("m2")
        git.commit(rollout={"steps": [{"weight": 50, "pause": HOUR}], "window": HOUR})
        for point in FaultPoint:
            # given a rollout in mid-shift, and a document that requests are given
            receipts = here.status.get("erasure", {}).get("revision", 0)
            git.commit(documents=[DOCUMENT], modelVersionRef={"name": "m2"})
            wait_for(lambda: here.status["rollout"]["phase"] == "Shifting", f"a shift before {point}")
            began = time.monotonic()
            wait_for(lambda began=began: 200 in asker.since(began), "an answer with the document")
            revision = here.status["documentRevision"]

            # when it is withdrawn, and the operator is killed on the way
            with death(here, armed, point, "withdrawal"):
                git.commit(documents=[])
            wait_for(lambda revision=revision: withdrawn(here.status, revision), f"the withdrawal after {point}")
            over = time.monotonic()
            # then nobody is given it any more, and the shift is where it was
            wait_for(lambda over=over: 404 in asker.since(over), "an answer that there is no such document")
            assert here.status["rollout"]["phase"] == "Shifting"
            assert (here.status["activeGeneration"], here.status["desiredGeneration"]) == (m1, m2)

            # when the rollout is reverted in mid-shift, and the operator is killed on the way
            with death(here, armed, point, "revert"):
                git.move_to("m1")
            wait_for(lambda receipts=receipts: is_back(here.status, m1, receipts), f"the way back after {point}")
            # then the old one answers alone, and the way back has brought no text back
            assert here.share(m1, 6, kvgrove={}) == 1
            assert set(asker.since(over)) <= {404, 503}, f"given what was withdrawn before {point}"
