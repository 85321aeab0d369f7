"""What plans take from the members' words."""

from kvgrove_operator.members import MemberView
from kvgrove_operator.observed import observe
from kvgrove_protocol.control import DAEMON, GATEWAY, Hello, ModelReport, NamespaceReport, NodeReport, Revision
from kvgrove_protocol.fence import Fence


def view(member: str, role: str, *, epochs: dict[str, int], fence: Fence | None = None) -> MemberView:
    hello = Hello(member=member, role=role, boot="b", epochs_seen=epochs)
    namespaces = [NamespaceReport(uid="u1", fence=fence, purge_counter=fence.purge)] if fence is not None else []
    models = [ModelReport(name="m", state="loading")]
    report = NodeReport(report_id=1, applied=Revision(term=1, n=1), namespaces=namespaces, models=models)
    return MemberView(b"peer", hello, 0.0, report if fence is not None else None)


def test_the_highest_counters_of_all_members_count() -> None:
    found = observe(
        [
            view("node-0", DAEMON, epochs={"u1": 9, "u2": 3}, fence=Fence(2, 5, 1)),
            view("gateway-0", GATEWAY, epochs={}, fence=Fence(3, 4, 7)),
        ]
    )
    assert found.fences_seen == {"u1": Fence(9, 5, 7), "u2": Fence(3, 0, 0)}


def test_only_daemons_have_models() -> None:
    found = observe(
        [
            view("node-0", DAEMON, epochs={}, fence=Fence(1, 1, 1)),
            view("node-1", DAEMON, epochs={}),
            view("gateway-0", GATEWAY, epochs={}, fence=Fence(1, 1, 1)),
        ],
        erased=["u9"],
    )
    assert found.daemons == {"node-0", "node-1"}
    assert {name: set(reports) for name, reports in found.models.items()} == {"m": {"node-0"}}
    assert found.erased == {"u9"}
