"""Plans and reports travel as what changed since one that both sides hold, over real sockets."""

import zmq.asyncio
from link_rig import Member, Planner, bound, linked, node_plan, over_loopback, until
from msgspec.structs import replace

from kvgrove_protocol.changes import plan_since, report_with
from kvgrove_protocol.control import NodeReport, Revision


def _reports(planner: Planner) -> list[NodeReport]:
    return [heard for heard in planner.heard if isinstance(heard, NodeReport)]


@over_loopback
async def test_a_member_that_is_sent_changes_applies_the_whole_plan(context: zmq.asyncio.Context) -> None:
    async with linked(context) as (planner, member):
        await until(lambda: any(report.applied == Revision(1, 1) for report in _reports(planner)))
        await planner.socket.send(planner.peers[-1], plan_since(node_plan(1), node_plan(2)))
        await until(lambda: member.applied == Revision(1, 2))
        assert member.plans == [node_plan(1), node_plan(2)]
        assert not any(report.plan_wanted for report in _reports(planner))


@over_loopback
async def test_a_member_that_lacks_the_base_asks_once_for_the_whole_plan(context: zmq.asyncio.Context) -> None:
    async with linked(context) as (planner, member):
        await until(lambda: member.applied == Revision(1, 1))
        await planner.socket.send(planner.peers[-1], plan_since(node_plan(7), node_plan(8)))
        await until(lambda: any(report.plan_wanted for report in _reports(planner)))
        count = len(_reports(planner))
        await until(lambda: len(_reports(planner)) > count + 2)
        assert sum(report.plan_wanted for report in _reports(planner)) == 1
        assert member.plans == [node_plan(1)]
        await planner.socket.send(planner.peers[-1], node_plan(8))
        await until(lambda: member.applied == Revision(1, 8))


@over_loopback
async def test_each_connection_begins_with_a_whole_report(context: zmq.asyncio.Context) -> None:
    planner = Planner(context)
    member = Member(context, planner.socket.address)
    await until(lambda: len(_reports(planner)) > 3)
    first = _reports(planner)
    assert [report.base for report in first] == [0, *(report.report_id for report in first[:-1])]
    address = planner.socket.address
    await planner.stop()
    again = await bound(context, address, term=2)
    await until(lambda: len(_reports(again)) > 2)
    assert [report.base for report in _reports(again)][:2] == [0, _reports(again)[0].report_id]
    await member.link.close()
    await again.stop()


@over_loopback
async def test_reports_sent_as_changes_add_up(context: zmq.asyncio.Context) -> None:
    async with linked(context) as (planner, _):
        await until(lambda: len(_reports(planner)) > 3)
        heard: NodeReport | None = None
        for report in _reports(planner):
            heard = report_with(heard, report)
            assert heard == replace(report, base=0, gone=[], namespaces=[])
