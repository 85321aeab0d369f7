"""A GitOps story: whoever owns the namespace changes one line in Git at a time, and reads the status."""

from __future__ import annotations

from pathlib import Path

import pytest
from controlplane.plane import Plane
from gitops_rig import HOUR, LONG, NAMESPACE, PREFIX, Story, reused, story
from operator_rig import condition, wait_for


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
