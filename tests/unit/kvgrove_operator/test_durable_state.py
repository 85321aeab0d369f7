"""The planner's state as Secrets, and the ledger's records as CacheNodes: what is written reads back the same."""

from datetime import UTC, datetime
from typing import Any

import pytest
from planning_rig import Planning, model, namespace, ready

from kvgrove_crds.cache_node import CacheNode
from kvgrove_operator import cache_nodes
from kvgrove_operator.cache_nodes import EARLIER_BOOTS, MAX_BOOTS, Fleetwide
from kvgrove_operator.durable_state import StateDamaged, secret_of, secrets_of, state_of
from kvgrove_operator.member_events import MemberRecord
from kvgrove_protocol.control import Revision

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


def node_with(held: list[MemberRecord]) -> CacheNode:
    status = cache_nodes.compose(None, held, None, AROUND)
    body = cache_nodes.spec_of("node-a", "daemon") | {"status": status.model_dump(mode="json", by_alias=True)}
    return CacheNode.model_validate(body, by_alias=True, by_name=False)


def test_i3_records_of_members_read_back_as_they_were() -> None:
    assert cache_nodes.records_of(node_with(records(3))) == records(3)


def test_i11_of_a_member_that_restarts_again_and_again_the_longest_lease_is_kept() -> None:
    (kept,) = cache_nodes.records_of(node_with(records(MAX_BOOTS + 5)))
    assert (kept.boot, kept.seconds) == (EARLIER_BOOTS, 10.0 + MAX_BOOTS + 4)


def test_a_record_outlives_the_connection_and_the_name() -> None:
    before = cache_nodes.compose(None, records(1), None, AROUND)
    later = Fleetwide(names={}, models={}, revision=AROUND.revision, now=NOW)
    (held,) = cache_nodes.compose(None, records(1), before, later).namespaces
    assert (held.namespace, held.name) == ("team", "a")


def test_time_alone_is_not_worth_a_write() -> None:
    before = cache_nodes.compose(None, records(1), None, AROUND)
    later = Fleetwide(names=AROUND.names, models={}, revision=Revision(term=1, n=9), now=NOW.replace(hour=9))
    assert not cache_nodes.tells_more(cache_nodes.compose(None, records(1), before, later), before)
    assert cache_nodes.tells_more(cache_nodes.compose(None, records(2), before, later), before)
