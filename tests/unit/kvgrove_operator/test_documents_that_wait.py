"""``update: WarmFirst``: the older version serves until the next one is warm, or its time is up, or it must be cut."""

from typing import Any

import pytest
from planning_rig import Planning, document, namespace, only, ready

from kvgrove_crds.namespace import PromptCacheNamespace
from kvgrove_operator.coming import ComingWarmth
from kvgrove_operator.observed import Observed
from kvgrove_protocol.control import DocumentPlan

NODES = ("node-0", "node-1")


def declared(version: str, *, name: str = "doc", **fields: Any) -> dict[str, Any]:
    return document(name, f"text of {version}", version, update="WarmFirst", warmDeadline="60s", **fields)


def of(*documents: dict[str, Any], **spec: Any) -> PromptCacheNamespace:
    return namespace(documents=list(documents), **spec)


def heard(epochs: list[int], ready_blocks: int, wanted: int, *, nodes: tuple[str, ...] = NODES) -> Observed:
    known = ready("m1", daemons=NODES)
    warmth = ComingWarmth(frozenset(epochs), ready_blocks, wanted)
    return Observed(known.daemons, known.models, coming={"uid-a": dict.fromkeys(nodes, warmth)})


def versions(documents: list[DocumentPlan]) -> list[str]:
    return [each.version for each in documents]


@pytest.fixture
def planning() -> Planning:
    planning = Planning()
    planning(of(declared("v1")))
    return planning


def test_the_older_version_stays_in_force_and_the_fence_where_it_is(planning: Planning) -> None:
    before = only(planning(of(declared("v1"))))
    after = only(planning(of(declared("v2"))))
    assert (versions(after.documents), versions(after.coming)) == (["v1"], ["v2"])
    assert (after.fence, after.documents) == (before.fence, before.documents)
    assert after.coming[0].epoch > after.documents[0].epoch
    assert planning.last is not None
    assert {b"text of v1", b"text of v2"} <= set(planning.last.bodies.values())


def test_it_switches_when_every_node_has_it_warm_with_the_epoch_it_was_warmed_under(planning: Planning) -> None:
    waiting = only(planning(of(declared("v2"))))
    epoch = waiting.coming[0].epoch
    for short in (heard([epoch], 9, 10), heard([epoch], 10, 10, nodes=("node-0",)), heard([epoch - 1], 10, 10)):
        assert versions(only(planning(of(declared("v2")), observed=short)).documents) == ["v1"]
    switched = only(planning(of(declared("v2")), observed=heard([epoch], 10, 10)))
    assert (versions(switched.documents), switched.coming) == (["v2"], [])
    assert switched.documents[0].epoch == epoch
    assert switched.fence.documents == waiting.fence.documents + 1


@pytest.mark.parametrize("end", ["switched", "given up", "cut"])
def test_i3_the_plan_that_ends_a_version_hands_its_text_out_no_more(planning: Planning, end: str) -> None:
    epoch = only(planning(of(declared("v2")))).coming[0].epoch
    last = {
        "switched": lambda: planning(of(declared("v2")), observed=heard([epoch], 10, 10)),
        "given up": lambda: planning(of(declared("v1"))),
        "cut": lambda: planning(of(document("doc", "text of v2", "v2"))),
    }[end]()
    assert list(last.bodies.values()) == [b"text of v1" if end == "given up" else b"text of v2"]


def test_the_declared_ratio_is_enough(planning: Planning) -> None:
    wanted = of(declared("v2"), warmup={"minimumRatio": 0.9})
    epoch = only(planning(wanted)).coming[0].epoch
    assert versions(only(planning(wanted, observed=heard([epoch], 9, 10))).documents) == ["v2"]


def test_it_switches_when_its_time_is_up(planning: Planning) -> None:
    first = planning(of(declared("v2")))
    assert first.due == planning.now + 60
    planning.now += 59.9
    assert versions(only(planning(of(declared("v2")))).documents) == ["v1"]
    planning.now += 0.1
    last = planning(of(declared("v2")))
    assert versions(only(last).documents) == ["v2"]
    assert last.due is None


def test_a_version_that_was_given_up_is_never_met_again(planning: Planning) -> None:
    first = only(planning(of(declared("v2")))).coming[0].epoch
    back = only(planning(of(declared("v1"))))
    assert (versions(back.documents), back.coming) == (["v1"], [])
    second = only(planning(of(declared("v2")))).coming[0].epoch
    assert second > first
    cut = only(planning(of(document("doc", "text of v2", "v2", scopes=["s"]))))
    assert cut.documents[0].epoch > second


@pytest.mark.parametrize(
    "change",
    [
        {"documents": [declared("v2", scopes=["finance"])]},
        {"documents": [declared("v2")], "purge": {"epoch": 1}},
        {"documents": [declared("v2")], "access": {"tenants": ["acme"]}},
        {"documents": [document("doc", "text of v2", "v2")]},
    ],
    ids=["scopes", "purge", "access", "cut-first"],
)
def test_what_somebody_relies_on_being_gone_is_cut_at_once(planning: Planning, change: dict[str, Any]) -> None:
    planning(of(declared("v2")))
    after = only(planning(namespace(**change)))
    assert (versions(after.documents), after.coming) == (["v2"], [])


def test_a_withdrawal_is_immediate_and_ends_the_wait(planning: Planning) -> None:
    waiting = only(planning(of(declared("v2"))))
    gone = only(planning(of()))
    assert (gone.documents, gone.coming) == ([], [])
    assert gone.fence.documents > waiting.fence.documents


def test_versions_that_wait_together_switch_together_and_late_ones_alone_at_their_time() -> None:
    planning = Planning()
    planning(of(declared("v1"), declared("v1", name="other")))
    planning(of(declared("v2"), declared("v1", name="other")))
    planning.now += 30
    both = of(declared("v2"), declared("v2", name="other"))
    epochs = [each.epoch for each in only(planning(both)).coming]
    assert versions(only(planning(both, observed=heard(epochs[:1], 10, 10))).documents) == ["v1", "v1"]
    planning.now += 30
    assert versions(only(planning(both)).documents) == ["v2", "v1"]
    assert versions(only(planning(both, observed=heard(epochs[1:], 10, 10))).documents) == ["v2", "v2"]


def test_a_text_that_cannot_be_handed_out_any_more_does_not_hold_the_next_one_back(planning: Planning) -> None:
    planning.last = None  # a planner that restarted: the older text is nowhere
    after = only(planning(of(declared("v2"))))
    assert (versions(after.documents), after.coming) == (["v2"], [])
