"""The planner's state as Secrets, and the ledger's records as CacheNodes: what is written reads back the same."""

from datetime import UTC, datetime
from typing import Any

import pytest
from planning_rig import Planning, model, namespace, ready

from kvgrove_crds.cache_node import SHOWN_NAMESPACES, CacheNode
from kvgrove_operator import cache_nodes
from kvgrove_operator.cache_nodes import Fleetwide
from kvgrove_operator.durable_state import StateDamaged, secret_of, secrets_of, state_of
from kvgrove_operator.member_events import MemberRecord
from kvgrove_operator.member_records import EARLIER_BOOTS, MAX_BOOTS
from kvgrove_operator.members import MemberView
from kvgrove_protocol.control import DAEMON, Hello, NamespaceReport, NodeReport, Revision
from kvgrove_protocol.fence import Fence

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
AROUND = Fleetwide(names={"uid-a": "team/a"}, models={}, revision=Revision(term=1, n=1), now=NOW)


def stored(planning: Planning) -> list[dict[str, Any]]:
    return [secret_of("ops", name, label, content) for name, (label, content) in secrets_of(planning.state).items()]


def test_what_is_stored_reads_back_as_it_was() -> None:
    planning = Planning()
    planning(namespace("a"), namespace("b"), observed=ready("m1"))
    planning(namespace("a"), observed=ready("m1"))
    assert set(planning.state.removed) == {"uid-b"}
    assert state_of(stored(planning)) == planning.state


def test_one_object_is_one_secret_so_that_a_change_writes_little() -> None:
    planning = Planning()
    planning(namespace("a"), namespace("b"), models=(model("m1"), model("m2")))
    before = secrets_of(planning.state)
    assert sorted(before) == [
        "kvgrove-model-m1",
        "kvgrove-model-m2",
        "kvgrove-namespace-uid-a",
        "kvgrove-namespace-uid-b",
    ]
    planning(namespace("a", purge={"epoch": 1}), namespace("b"), models=(model("m1"), model("m2")))
    after = secrets_of(planning.state)
    assert [name for name in after if after[name] != before[name]] == ["kvgrove-namespace-uid-a"]


def test_a_damaged_secret_is_named_with_its_cure() -> None:
    planning = Planning()
    planning(namespace("a"))
    secrets = stored(planning)
    secrets[0]["data"] = {"state": "bm8="}
    with pytest.raises(StateDamaged, match=r"Secret kvgrove-.*: .*restore it from a backup"):
        state_of(secrets)


def records(count: int, uid: str = "uid-a") -> list[MemberRecord]:
    return [
        MemberRecord(uid=uid, member="node-a", boot=f"boot-{number}", role="daemon", seconds=10.0 + number)
        for number in range(count)
    ]


def member_with(fences: dict[str, Fence], cold: str = "") -> MemberView:
    """A connected member; each namespace wants one block."""
    namespaces = [
        NamespaceReport(uid=uid, fence=fence, purge_counter=fence.purge, warm_ready=int(uid != cold), warm_wanted=1)
        for uid, fence in fences.items()
    ]
    report = NodeReport(report_id=1, applied=AROUND.revision, namespaces=namespaces)
    return MemberView(b"peer", Hello(member="node-a", role=DAEMON, boot="boot-0"), 0.0, report)


def node_with(held: list[MemberRecord]) -> CacheNode:
    status = cache_nodes.compose(None, held, None, AROUND)
    body = cache_nodes.spec_of("node-a", "daemon") | {"status": status.model_dump(mode="json", by_alias=True)}
    return CacheNode.model_validate(body, by_alias=True, by_name=False)


def test_i3_records_of_members_read_back_as_they_were() -> None:
    assert cache_nodes.leases_of(node_with(records(3))) == records(3)


def test_i11_of_a_member_that_restarts_again_and_again_the_longest_lease_is_kept() -> None:
    (kept,) = cache_nodes.leases_of(node_with(records(MAX_BOOTS + 5)))
    assert (kept.boot, kept.seconds) == (EARLIER_BOOTS, 10.0 + MAX_BOOTS + 4)


def test_a_record_outlives_the_connection_and_the_name() -> None:
    before = cache_nodes.compose(None, records(1), None, AROUND)
    assert [(each.namespace, each.name) for each in before.namespaces] == [("team", "a")]
    later = Fleetwide(names={}, models={}, revision=AROUND.revision, now=NOW)
    after = cache_nodes.compose(None, records(1), before, later)
    assert (after.records, after.held, after.namespaces) == (before.records, 1, ())


def test_i3_counters_on_record_never_fall() -> None:
    leases = [*records(1, "uid-a"), *records(1, "uid-b")]
    high, low = {"uid-a": Fence(3, 1, 1)}, {"uid-a": Fence(1, 2, 1), "uid-b": Fence(1, 1, 1)}
    before = cache_nodes.compose(member_with(high), leases, None, AROUND)
    after = cache_nodes.compose(member_with(low), leases, before, AROUND)
    unheard = cache_nodes.compose(None, leases, after, AROUND)
    for status in (after, unheard):
        body = cache_nodes.spec_of("node-a", "daemon") | {"status": status.model_dump(mode="json", by_alias=True)}
        node = CacheNode.model_validate(body, by_alias=True, by_name=False)
        assert cache_nodes.fences_of([node]) == {"uid-a": Fence(3, 2, 1), "uid-b": Fence(1, 1, 1)}


def test_of_many_namespaces_those_that_are_not_warm_are_shown() -> None:
    names = {f"uid-{number:03}": f"team/bot-{number:03}" for number in range(200)}
    around = Fleetwide(names=names, models={}, revision=AROUND.revision, now=NOW)
    leases = [each for uid in names for each in records(1, uid)]
    view = member_with(dict.fromkeys(names, Fence(1, 1, 1)), cold="uid-150")
    status = cache_nodes.compose(view, leases, None, around)
    assert status.held == 200
    assert [each.name for each in status.namespaces][:2] == ["bot-150", "bot-000"]
    assert len(status.namespaces) == SHOWN_NAMESPACES
    assert status.summary.warm == "199/200"


@pytest.mark.parametrize("text", ["{", "[]", '{"boots":[],"held":{"u":[[[0,1.0]],[1,1,1]]}}', '{"boots":[],"more":1}'])
def test_records_that_are_not_the_operators_are_told_from_none(text: str) -> None:
    node = node_with(records(1))
    assert node.status is not None
    node = node.model_copy(update={"status": node.status.model_copy(update={"records": text})})
    with pytest.raises(ValueError, match=r"."):
        cache_nodes.leases_of(node)


def test_time_alone_is_not_worth_a_write() -> None:
    before = cache_nodes.compose(None, records(1), None, AROUND)
    later = Fleetwide(names=AROUND.names, models={}, revision=Revision(term=1, n=9), now=NOW.replace(hour=9))
    assert not cache_nodes.tells_more(cache_nodes.compose(None, records(1), before, later), before)
    assert cache_nodes.tells_more(cache_nodes.compose(None, records(2), before, later), before)
