"""Many objects and nodes for one operator, counted in writes; `bench/operator.py` measures full size in seconds."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import apply_crds
from controlplane.plane import Plane
from operator_rig import Operator, operator
from simulated_fleet import (
    Api,
    Size,
    Statuses,
    declare,
    figure,
    members,
    namespace_path,
    node_objects,
    purged,
)

pytestmark = pytest.mark.timeout(600)

SIZE = Size(namespaces=60, models=4, nodes=10, per_process=5)
WAIT_SECONDS = 300.0
PER_NAMESPACE, PER_NODE = 12, 20
"""Writes until all are Ready: finalizer, Secret, Events and a few statuses of each; a few records of each node."""


@dataclass(frozen=True)
class Many:
    op: Operator
    api: Api
    statuses: Statuses
    processes: Sequence[subprocess.Popen[bytes]]
    """Of the members."""

    def writes(self, kind: str = "api") -> float:
        return figure(self.op, f"kvgrove_operator_{kind}_writes_total")


@pytest.fixture(scope="module")
def many(control_plane_programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Many]:
    """Everything is Ready."""
    folder = tmp_path_factory.mktemp("many")
    with ExitStack() as stack:
        plane = stack.enter_context(Plane.in_folder(folder / "plane", programs=control_plane_programs))
        apply_crds(plane)
        (folder / "models").mkdir()
        op = stack.enter_context(operator(plane, folder / "op", folder / "models", light=True))
        stack.enter_context(node_objects(plane, folder, SIZE))
        processes = stack.enter_context(members(plane, op, folder / "members", SIZE))
        api = Api(plane)
        made = Many(op, api, Statuses(api), processes)
        declare(api, SIZE, folder / "models")
        made.statuses.wait(lambda: made.statuses.ready() == SIZE.namespaces, "all of them Ready", WAIT_SECONDS)
        yield made


def test_all_get_ready_with_few_writes_each_and_none_while_nothing_happens(many: Many) -> None:
    assert many.writes() <= PER_NAMESPACE * SIZE.namespaces + PER_NODE * SIZE.nodes
    _quiet(many)
    before = many.writes("status"), many.writes("record")
    time.sleep(5)
    assert (many.writes("status"), many.writes("record")) == before


def test_a_purge_of_one_writes_nothing_of_the_others_and_is_told_to_all(many: Many) -> None:
    _quiet(many)
    before, versions = many.writes("status"), _versions(many)
    many.api.merge(namespace_path(7, SIZE), {"spec": {"purge": {"epoch": 2}}})
    many.statuses.wait(lambda: purged(many.statuses.of("team-7", "bot-0007"), 2), "the purge", WAIT_SECONDS)
    invalidation = many.statuses.of("team-7", "bot-0007")["status"]["invalidation"]
    assert invalidation["confirmed"] == SIZE.nodes
    _quiet(many)
    changed = {name for name, version in _versions(many).items() if versions[name] != version}
    assert changed == {"bot-0007"}
    # Of the namespace: as it is asked for, as members confirm, and when all have. Of its models: nothing changed.
    assert many.writes("status") - before <= 2 + SIZE.nodes


def test_ops_11_members_that_never_answer_keep_neither_probes_nor_other_work_waiting(many: Many) -> None:
    hung = many.processes[0]
    hung.send_signal(signal.SIGSTOP)
    try:
        path = namespace_path(8, SIZE)
        many.api.merge(path, {"spec": {"purge": {"epoch": 2}}})
        half = SIZE.nodes - SIZE.per_process

        def confirmed() -> bool:
            status = many.statuses.of("team-8", "bot-0008")["status"]
            return bool(status["purge"]["observedEpoch"] == 2 and status["invalidation"]["confirmed"] == half)

        many.statuses.wait(confirmed, "those that answer to confirm", WAIT_SECONDS)
        assert many.op.probed("/healthz")
        assert many.op.probed("/readyz")
        many.api.merge(namespace_path(9, SIZE), {"spec": {"suspend": True}})
        many.statuses.wait(
            lambda: many.statuses.of("team-9", "bot-0009")["status"]["phase"] == "Suspended", "other work", WAIT_SECONDS
        )
    finally:
        hung.send_signal(signal.SIGCONT)
    many.statuses.wait(lambda: purged(many.statuses.of("team-8", "bot-0008"), 2), "the purge", WAIT_SECONDS)


def _versions(many: Many) -> dict[str, str]:
    found = many.api.call("GET", "/apis/kvgrove.dev/v1alpha1/promptcachenamespaces")["items"]
    return {each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in found}


def _quiet(many: Many) -> None:
    """Until nothing has been written for a moment, the leader's Lease apart."""
    deadline = time.monotonic() + WAIT_SECONDS
    before = -1.0
    while (now := many.writes("status") + many.writes("record")) != before:
        assert time.monotonic() < deadline, "it never comes to rest"
        before = now
        time.sleep(3)
