"""The embedded fleet end to end: two nodes, two gateways, a real model, changes while it runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fleets import NAMESPACE, STEP_SECONDS, RunningFleet, running_fleet, write_manifests

from kvgrove_cli.errors import FleetProblem
from kvgrove_cli.fleet import Fleet
from kvgrove_cli.processes import ChildState
from kvgrove_cli.status import FleetStatus, read
from kvgrove_crds.problems import ManifestError
from kvgrove_daemon.cache.segments import remove_dead_segments

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


MODEL_WITHOUT_FILES = """
---
apiVersion: kvgrove.dev/v1alpha1
kind: ModelVersion
metadata: {name: none}
spec: {source: {hostPath: {path: /nowhere}}}
"""


@pytest.fixture(scope="module")
def model(tiny_model: Callable[[str], Path]) -> Path:
    return tiny_model("llama")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[RunningFleet]:
    with running_fleet(tmp_path_factory.mktemp("fleet"), model) as running:
        yield running
        running.do_now(running.fleet.kill, "node-1")
    assert remove_dead_segments("node-1", "") == {}, "a killed node's reserved memory outlived its fleet"


@pytest.fixture(autouse=True)
def back_to_the_start(running: RunningFleet, model: Path) -> None:
    """Each test begins with version v1, everything up."""
    write_manifests(running.manifests, model)
    running.do(running.fleet.apply())
    running.do(running.fleet.ready(STEP_SECONDS))


def missed(body: dict[str, dict[str, dict[str, int]]]) -> dict[str, int]:
    return body["kvgrove"]["missed"]


def test_a_question_is_answered_and_the_next_one_reuses_what_they_share(running: RunningFleet) -> None:
    first, second = running.fleet.base_urls
    cold = running.post(first, question="What about parcels?").json()
    warm = running.post(second, question="And what about repairs?").json()
    for body in (cold, warm):
        usage = body["usage"]
        reused = usage["prompt_tokens_details"]["cached_tokens"]
        assert reused + sum(missed(body).values()) == usage["prompt_tokens"]
    assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] >= 32
    assert cold["choices"][0]["finish_reason"] in ("stop", "length")


def test_a_stream_ends_with_the_same_usage(running: RunningFleet) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    plain = running.post(running.fleet.base_url, question="Do you rent helmets?").json()["usage"]
    lines = running.post(running.fleet.base_url, question="Do you rent helmets?", **options).text.split("\n\n")
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line and line != "data: [DONE]"]
    assert lines[-2] == "data: [DONE]"
    assert chunks[-1]["usage"]["prompt_tokens"] == plain["prompt_tokens"]


def test_private_text_is_never_shared_between_tenants(running: RunningFleet) -> None:
    question = "My order is late, the carrier says that nobody was at home, but I was there all day. " * 4
    running.post(running.fleet.base_url, question=question)
    again = running.post(running.fleet.base_url, question=question).json()
    other = running.post(running.fleet.base_url, question=question, tenant="globex").json()
    mine, theirs = (body["usage"]["prompt_tokens_details"]["cached_tokens"] for body in (again, other))
    assert 32 <= theirs < mine
    assert set(missed(other)) <= {"new", "partial_block"}


def test_i3_a_changed_document_is_read_by_nobody_once_its_invalidation_is_complete(
    running: RunningFleet, model: Path
) -> None:
    first = [running.post(url).json() for url in running.fleet.base_urls]
    old = [body["usage"]["prompt_tokens"] for body in first]
    reused = running.post(running.fleet.base_url).json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert reused >= 128, "prefix and document"
    before = running.fleet.status().namespace(NAMESPACE).fence

    write_manifests(running.manifests, model, version="v2")

    def complete(current: FleetStatus) -> bool:
        namespace = current.namespace(NAMESPACE)
        return namespace.fence != before and namespace.invalidation_complete

    current = running.do(running.fleet.wait_for(complete, STEP_SECONDS))
    counts = current.namespace(NAMESPACE).invalidation
    assert (counts.confirmed, counts.expired, counts.pending) == (4, 0, 0)
    second = [running.post(url).json() for url in running.fleet.base_urls]
    for body, tokens in zip(second, old, strict=True):
        assert body["usage"]["prompt_tokens"] != tokens
    write_manifests(running.manifests, model)  # v1 again: its old blocks must stay unreadable
    running.do(running.fleet.apply())
    running.do(running.fleet.ready(STEP_SECONDS))
    body = running.post(running.fleet.base_url).json()
    assert body["usage"]["prompt_tokens"] == old[0]
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] < reused, "at most what lies before the document"
    if body["kvgrove"]["node"] in {each["kvgrove"]["node"] for each in second}:  # a node tells what it knew itself
        assert missed(body).get("document_changed", 0) > 0


def test_a_document_that_is_warmed_first_is_served_in_its_older_version_until_the_next_one_is_warm(
    running: RunningFleet, model: Path
) -> None:
    options = {"update": "WarmFirst", "warm": ("support",)}
    write_manifests(running.manifests, model, **options)
    running.do(running.fleet.apply())
    running.do(running.fleet.ready(STEP_SECONDS))
    before = running.fleet.status().namespace(NAMESPACE)
    old = running.post(running.fleet.base_url).json()["usage"]["prompt_tokens"]

    write_manifests(running.manifests, model, version="v2", **options)
    running.do(running.fleet.apply())
    fences = [running.fleet.status().namespace(NAMESPACE).fence]  # the change is planned, and nothing is cut
    current = running.do(
        running.fleet.wait_for(lambda now: now.namespace(NAMESPACE).fence != before.fence, STEP_SECONDS)
    )
    assert fences == [before.fence]
    assert current.namespace(NAMESPACE).fence[1] == before.fence[1] + 1
    running.do(running.fleet.ready(STEP_SECONDS))
    usage = running.post(running.fleet.base_url).json()["usage"]
    assert usage["prompt_tokens"] != old
    warmed = running.fleet.status().namespace(NAMESPACE)
    assert warmed.warm_ready == warmed.warm_wanted > before.warm_wanted
    # Both nodes hold the same prefix; whichever answers, its first question of the new version meets it.
    assert usage["prompt_tokens_details"]["cached_tokens"] == warmed.warm_wanted // 2 * 32


def test_a_broken_manifest_keeps_the_last_good_plan_and_says_what_is_wrong(running: RunningFleet, model: Path) -> None:
    revision = running.fleet.status().revision
    file = running.manifests / "all.yaml"
    file.write_text(file.read_text().replace("version: v1\n    text", "versoin: v1\n    text"))
    current = running.do(running.fleet.wait_for(lambda current: bool(current.problems), STEP_SECONDS))
    assert {problem.object for problem in current.problems} == {str(file)}
    messages = [problem.message for problem in current.problems]
    assert any("spec.prefixes[0].versoin: unknown field; did you mean version?" in message for message in messages)
    assert current.revision == revision
    assert not current.ready
    assert running.post(running.fleet.base_url).status_code == 200
    with pytest.raises(ManifestError):
        running.do(running.fleet.apply())
    write_manifests(running.manifests, model)
    running.do(running.fleet.wait_for(lambda current: current.ready, STEP_SECONDS))


def test_a_model_without_files_is_a_problem_of_its_own(running: RunningFleet) -> None:
    file = running.manifests / "all.yaml"
    file.write_text(file.read_text() + MODEL_WITHOUT_FILES)
    running.do(running.fleet.apply())
    current = running.fleet.status()
    assert [(p.object, p.reason) for p in current.problems] == [("ModelVersion none", "SourceMissing")]
    assert "spec.source.hostPath.path: /nowhere is not a directory" in current.problems[0].message
    assert current.namespace(NAMESPACE).phase == "Ready"
    assert running.post(running.fleet.base_url).status_code == 200


def test_a_killed_node_fails_no_request_and_comes_back(running: RunningFleet) -> None:
    fleet = running.fleet
    running.do_now(fleet.kill, "node-1", restart=True)
    for url in fleet.base_urls:
        for number in range(3):
            assert running.post(url, question=f"Question {number}?").status_code == 200
    running.do(fleet.wait_for(lambda s: s.member("node-1").restarts == 1 and s.ready, 2 * STEP_SECONDS))
    assert fleet.status().member("node-1").state == ChildState.RUNNING


def test_the_status_file_says_what_the_fleet_says(running: RunningFleet, tmp_path: Path) -> None:
    running.do(running.fleet.wait_for(lambda current: current.ready, STEP_SECONDS))
    path = running.manifests.parent / "state" / "status.json"
    on_disk = read(path)
    assert on_disk.pid > 0
    assert {member.name for member in on_disk.members} == {"node-0", "node-1", "gateway-0", "gateway-1"}
    text = path.read_text()
    assert "Customers may return" not in text
    assert "secret" not in text


def test_a_second_fleet_on_the_same_state_is_refused(running: RunningFleet) -> None:
    async def start() -> None:
        async with Fleet(running.fleet.options):
            pass

    with pytest.raises(FleetProblem, match="in use by process"):
        running.do(start())
