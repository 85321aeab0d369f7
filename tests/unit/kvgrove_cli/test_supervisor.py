"""The embedded planner over real sockets, with members that hold no model: what is durable, when, and who gets what."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import pytest
import zmq.asyncio
from receipt_rig import KEY, receipt

from kvgrove_cli.errors import FleetProblem
from kvgrove_cli.manifests import Resources, parse, take_snapshot
from kvgrove_cli.state_dir import FleetState, StateDir
from kvgrove_cli.status import ErasureStatus
from kvgrove_cli.supervisor import Supervisor
from kvgrove_link.clock import boottime
from kvgrove_link.leases import LeaseTable
from kvgrove_link.member import MemberLink
from kvgrove_protocol.control import (
    DAEMON,
    GATEWAY,
    Hello,
    ModelReport,
    NamespaceReport,
    NodePlan,
    NodeReport,
    Revision,
)
from kvgrove_protocol.identity import GenerationInputs
from kvgrove_protocol.receipts import Receipt, seal_of

INPUTS = GenerationInputs(
    weights="sha256:w", tokenizer="sha256:t", chat_template="sha256:c", kv_dtype="float32", block_size=32
)
MANIFESTS = """
apiVersion: kvgrove.dev/v1alpha1
kind: ModelVersion
metadata: {{name: tiny}}
spec: {{source: {{hostPath: {{path: {model}}}}}}}
---
apiVersion: kvgrove.dev/v1alpha1
kind: PromptCacheNamespace
metadata: {{name: assistant, namespace: shop}}
spec:
  modelVersionRef: {{name: tiny}}
  documents: [{{name: policy, version: v1, text: {text}}}]
  privacy: {{erasures: [{erasures}]}}
"""


def resources(root: Path, text: str = "one", erasures: str = "") -> Resources:
    file = root / "all.yaml"
    file.write_text(MANIFESTS.format(model=root, text=text, erasures=erasures))
    return parse(take_snapshot(file))


class FakeNode:
    """A member that does what plans say and holds nothing: the link is real, the model is not there."""

    def __init__(self, name: str, role: str, boot: str) -> None:
        self.name, self.role, self.boot = name, role, boot
        self.plan: NodePlan | None = None
        self.leases = LeaseTable()
        self.applied_term = 0
        """A later term that this member claims to follow."""
        self.erases = True
        """Whether it gives receipts for what it is asked to erase."""

    def hello(self) -> Hello:
        return Hello(
            member=self.name, role=self.role, boot=self.boot, address=f"tcp://{self.name}:1", public_key=KEY.public
        )

    def take(self, plan: NodePlan) -> None:
        self.plan = plan

    def report(self, report_id: int) -> NodeReport:
        plan = self.plan
        if plan is None:
            return NodeReport(report_id=report_id, applied=Revision(self.applied_term, 0))
        models = [ModelReport(name=m.name, state="ready", inputs=INPUTS, tokenizer_bundle=b"b") for m in plan.models]
        return NodeReport(
            report_id=report_id,
            applied=max(plan.revision, Revision(self.applied_term, 0)),
            models=models if self.role == DAEMON else [],
            namespaces=[
                NamespaceReport(uid=n.uid, fence=n.fence, purge_counter=n.purge.counter) for n in plan.namespaces
            ],
            receipts=self.receipts(plan) if self.erases else [],
        )

    def receipts(self, plan: NodePlan) -> list[Receipt]:
        asked = [(uid, "", b"") for uid in plan.erase_uids]
        asked += [(n.uid, each.id, seal_of(n.secret)) for n in plan.namespaces for each in n.erasures]
        return [receipt(uid, erasure, member=self.name, boot=self.boot, seal=seal) for uid, erasure, seal in asked]


@asynccontextmanager
async def supervised(state_dir: StateDir) -> AsyncIterator[Supervisor]:
    context = zmq.asyncio.Context()
    uids = (f"uid-{number}" for number in count(1))
    supervisor = Supervisor(context, state_dir, changed=lambda: None, new_uid=lambda: next(uids))
    tasks = [asyncio.create_task(supervisor.serve()), asyncio.create_task(supervisor.keep_time())]
    try:
        yield supervisor
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        supervisor.close()
        context.destroy(linger=0)


@asynccontextmanager
async def joined(supervisor: Supervisor, name: str, role: str = DAEMON, boot: str = "b1") -> AsyncIterator[FakeNode]:
    context = zmq.asyncio.Context()
    node = FakeNode(name, role, boot)
    link = MemberLink(
        context, supervisor.address, node.hello, on_plan=node.take, report=node.report, leases=node.leases
    )
    task = asyncio.create_task(link.run())
    try:
        yield node
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        context.destroy(linger=0)


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not reached():  # noqa: ASYNC110 - many sources of news, none of them ours
            await asyncio.sleep(0.01)


@pytest.fixture
def state_dir(tmp_path: Path) -> Iterator[StateDir]:
    with StateDir(tmp_path / "state") as state_dir:
        yield state_dir


def stored(state_dir: StateDir) -> FleetState:
    return state_dir.load()


def test_each_start_leads_a_higher_term_and_remembers_epochs_and_identities(
    tmp_path: Path, state_dir: StateDir
) -> None:
    async def start(text: str) -> str:
        async with supervised(state_dir) as supervisor:
            await supervisor.apply(resources(tmp_path, text))
            return supervisor.view([]).revision

    assert asyncio.run(start("one")).split(".")[0] == "1"
    first = stored(state_dir)
    assert asyncio.run(start("one")).split(".")[0] == "2"
    assert (stored(state_dir).uids, stored(state_dir).plan) == (first.uids, first.plan)
    asyncio.run(start("two"))
    (uid,) = first.uids.values()
    before, after = first.plan.namespaces[uid], stored(state_dir).plan.namespaces[uid]
    assert after.document_revision == before.document_revision + 1
    assert (after.purge, after.secret) == (before.purge, before.secret)


def test_a_full_disk_is_waited_for_and_nothing_is_told_before_it_is_durable(
    tmp_path: Path, state_dir: StateDir
) -> None:
    async def scenario() -> None:
        async with supervised(state_dir) as supervisor, joined(supervisor, "node-0") as node:
            await supervisor.apply(resources(tmp_path, "one"))
            await until(lambda: node.plan is not None and bool(node.plan.namespaces))
            told = node.plan
            away = state_dir.path.rename(tmp_path / "away")  # takes no writes, as a full disk does
            applying = asyncio.create_task(supervisor.apply(resources(tmp_path, "two")))
            await until(lambda: [problem.reason for problem in supervisor.view([]).problems] == ["Unwritable"])
            assert told is not None
            assert node.plan is not None
            assert node.plan.namespaces[0].documents == told.namespaces[0].documents
            away.rename(state_dir.path)
            await applying
            assert supervisor.view([]).problems == []
            await until(
                lambda: node.plan is not None and node.plan.namespaces[0].documents != told.namespaces[0].documents
            )

    asyncio.run(scenario())


def test_a_fleet_that_cannot_keep_its_first_plan_does_not_start(tmp_path: Path, state_dir: StateDir) -> None:
    async def scenario() -> None:
        async with supervised(state_dir) as supervisor:
            state_dir.path.rename(tmp_path / "away")
            with pytest.raises(FleetProblem, match="make room"):
                await supervisor.apply(resources(tmp_path))

    asyncio.run(scenario())


def test_a_recreated_namespace_is_another_one(tmp_path: Path, state_dir: StateDir) -> None:
    async def scenario() -> None:
        async with supervised(state_dir) as supervisor:
            declared = resources(tmp_path)
            await supervisor.apply(declared)
            old = stored(state_dir).uids["shop/assistant"]
            await supervisor.apply(Resources(declared.models, ()))
            assert stored(state_dir).uids == {}
            assert old in stored(state_dir).plan.removed
            assert stored(state_dir).plan.removed[old].secret == b""
            await supervisor.apply(declared)
            assert stored(state_dir).uids["shop/assistant"] != old

    asyncio.run(scenario())


def test_i3_a_member_is_on_record_before_its_first_lease(tmp_path: Path, state_dir: StateDir) -> None:
    """A gateway, because nothing it reports gives another reason to write the state."""

    async def scenario() -> None:
        async with supervised(state_dir) as supervisor:
            await supervisor.apply(resources(tmp_path))
            async with joined(supervisor, "gateway-0", GATEWAY) as gateway:
                uid = stored(state_dir).uids["shop/assistant"]
                await until(lambda: gateway.leases.valid(uid, boottime()))
                (record,) = stored(state_dir).members["gateway-0"]
                assert (record.uid, record.boot, record.seconds) == (uid, "b1", 30.0)

    asyncio.run(scenario())


def test_i3_after_a_restart_a_recorded_member_is_pending_until_it_confirms(tmp_path: Path, state_dir: StateDir) -> None:
    async def scenario() -> None:
        async with supervised(state_dir) as supervisor:
            await supervisor.apply(resources(tmp_path))
            async with joined(supervisor, "node-0") as node:
                await until(lambda: node.leases.valid(stored(state_dir).uids["shop/assistant"], boottime()))
        async with supervised(state_dir) as supervisor:
            await supervisor.apply(resources(tmp_path, "two"))
            counts = supervisor.view([]).namespaces[0].invalidation
            assert (counts.pending, counts.complete) == (1, False)
            await supervisor.member_ended("node-0")
            assert supervisor.view([]).namespaces[0].invalidation.complete

    asyncio.run(scenario())


def test_daemons_name_the_generation_and_gateways_learn_of_them(tmp_path: Path, state_dir: StateDir) -> None:
    async def scenario() -> None:
        async with supervised(state_dir) as supervisor:
            await supervisor.apply(resources(tmp_path))
            async with joined(supervisor, "node-0"), joined(supervisor, "gateway-0", GATEWAY) as gateway:
                await until(lambda: gateway.plan is not None and bool(gateway.plan.models[0].generation))
                assert gateway.plan is not None
                assert [node.member for node in gateway.plan.nodes] == ["node-0"]
                assert gateway.plan.models[0].tokenizer_bundle == b"b"
                assert gateway.plan.namespaces[0].secret == b""
                view = supervisor.view(["node-0"])
                await until(lambda: supervisor.view(["node-0"]).namespaces[0].phase == "Ready")
                assert view.models[0].weights == "sha256:w"
                assert supervisor.link("node-0").connected

    asyncio.run(scenario())


def test_a_node_that_has_not_reported_keeps_a_namespace_from_being_ready(tmp_path: Path, state_dir: StateDir) -> None:
    async def scenario() -> None:
        async with supervised(state_dir) as supervisor:
            await supervisor.apply(resources(tmp_path))
            async with joined(supervisor, "node-0"):
                await until(lambda: supervisor.view(["node-0"]).namespaces[0].phase == "Ready")
                both = supervisor.view(["node-0", "node-1"])
                assert both.namespaces[0].message == "waiting for node-1"
                assert both.models[0].state == "Loading"

    asyncio.run(scenario())


def test_a_planner_that_was_overtaken_stops(tmp_path: Path, state_dir: StateDir) -> None:
    async def scenario() -> None:
        context = zmq.asyncio.Context()
        supervisor = Supervisor(context, state_dir, changed=lambda: None)
        try:
            await supervisor.apply(resources(tmp_path))
            async with joined(supervisor, "node-0") as node, asyncio.timeout(30):
                node.applied_term = 9
                with pytest.raises(FleetProblem, match="follows a planner of term 9, this one has 1"):
                    await supervisor.serve()
        finally:
            supervisor.close()
            context.destroy(linger=0)

    asyncio.run(scenario())


def test_i8_an_erasure_is_verified_when_every_holder_gave_its_receipt(tmp_path: Path, state_dir: StateDir) -> None:
    jane = "{name: request-1, tenant: acme, user: jane}"

    async def scenario() -> None:
        async with (
            supervised(state_dir) as supervisor,
            joined(supervisor, "node-0") as node,
            joined(supervisor, "gateway-0", GATEWAY) as gateway,
        ):

            def erasure() -> ErasureStatus:
                (only,) = supervisor.view([]).namespaces[0].erasures
                return only

            node.erases = False
            await supervisor.apply(resources(tmp_path))
            (uid,) = stored(state_dir).uids.values()
            await until(lambda: node.leases.valid(uid, boottime()) and gateway.leases.valid(uid, boottime()))
            secret = stored(state_dir).plan.namespaces[uid].secret
            await supervisor.apply(resources(tmp_path, erasures=jane))
            await until(lambda: erasure().confirmed == 1)
            assert (erasure().state, erasure().pending) == ("UnderWay", 1)
            assert stored(state_dir).plan.namespaces[uid].former_secret == secret
            node.erases = True
            await until(lambda: erasure().state == "Verified")
            assert (erasure().confirmed, erasure().pending, erasure().gone) == (2, 0, 0)
            signers = {signed.receipt.member for signed in erasure().receipts}
            assert signers == {"node-0", "gateway-0"}
            kept = stored(state_dir).plan.namespaces[uid]
            assert kept.former_secret == b""
            assert kept.secret != secret
            await until(lambda: node.plan is not None and not node.plan.namespaces[0].erasures)
        async with supervised(state_dir) as supervisor:  # the evidence outlives the supervisor
            await supervisor.apply(resources(tmp_path, erasures=jane))
            assert erasure_signers(supervisor) == signers

    asyncio.run(scenario())


def erasure_signers(supervisor: Supervisor) -> set[str]:
    return {signed.receipt.member for signed in supervisor.view([]).namespaces[0].erasures[0].receipts}


def test_i8_a_removed_namespace_is_shown_until_it_is_proven_gone(tmp_path: Path, state_dir: StateDir) -> None:
    async def scenario() -> None:
        async with supervised(state_dir) as supervisor, joined(supervisor, "node-0") as node:
            node.erases = False
            declared = resources(tmp_path)
            await supervisor.apply(declared)
            (uid,) = stored(state_dir).uids.values()
            await until(lambda: node.leases.valid(uid, boottime()))
            await supervisor.apply(Resources(declared.models, ()))
            await until(lambda: node.plan is not None and node.plan.erase_uids == [uid])
            (removed,) = supervisor.view([]).removed
            assert (removed.name, removed.uid, removed.erasure.pending) == ("shop/assistant", uid, 1)
            node.erases = True
            await until(lambda: supervisor.view([]).removed == [])
            assert stored(state_dir).plan.removed == {}

    asyncio.run(scenario())
