"""A member and a planner over real ZeroMQ sockets on loopback."""

import asyncio

import pytest
import zmq
import zmq.asyncio
from link_rig import BODY, PACING, Member, Planner, bound, node_plan, over_loopback, until

from kvgrove_link.bodies import body_digest
from kvgrove_link.errors import FetchTimeout, Superseded
from kvgrove_link.leases import LeaseTable
from kvgrove_link.member import MemberLink
from kvgrove_link.pacing import Pacing
from kvgrove_link.planner import PlannerSocket
from kvgrove_protocol.codec import MAX_FRAME_BYTES
from kvgrove_protocol.control import (
    NO_REVISION,
    TO_PLANNER,
    Goodbye,
    Hello,
    LeaseGrant,
    NodePlan,
    NodeReport,
    Revision,
)
from kvgrove_protocol.errors import Terminal


@over_loopback
async def test_hello_plan_report_grant_goodbye(context: zmq.asyncio.Context) -> None:
    planner = Planner(context)
    member = Member(context, planner.socket.address)
    await until(lambda: member.leased)
    assert isinstance(planner.heard[0], Hello)
    assert member.plans == [node_plan(1)]
    await until(lambda: any(isinstance(heard, NodeReport) and heard.applied.n == 1 for heard in planner.heard))
    await member.link.close()
    assert not member.leased
    await until(lambda: isinstance(planner.heard[-1], Goodbye))
    await member.task
    await planner.stop()


@over_loopback
async def test_reports_renew_without_being_asked(context: zmq.asyncio.Context) -> None:
    planner = Planner(context)
    member = Member(context, planner.socket.address)
    await until(lambda: sum(isinstance(heard, NodeReport) for heard in planner.heard) > 5)
    reports = [heard.report_id for heard in planner.heard if isinstance(heard, NodeReport)]
    assert reports == sorted(set(reports))
    await member.link.close()
    await planner.stop()


@over_loopback
async def test_report_soon_does_not_wait_for_the_next_beat(context: zmq.asyncio.Context) -> None:
    planner = Planner(context)
    planner.plan = None
    member = Member(
        context, planner.socket.address, pacing=Pacing(idle_report_interval=1_000.0, longest_report_interval=1_000.0)
    )
    await until(lambda: member.link.counters.reports == 1)
    member.link.report_soon()
    await until(lambda: member.link.counters.reports == 2)
    await member.link.close()
    await planner.stop()


@over_loopback
async def test_an_applied_plan_is_acknowledged_without_waiting_for_the_next_beat(context: zmq.asyncio.Context) -> None:
    planner = Planner(context)
    planner.plan = None
    slow = Pacing(idle_report_interval=1_000.0, longest_report_interval=1_000.0)
    member = Member(context, planner.socket.address, pacing=slow)
    await until(lambda: member.link.counters.reports == 1)
    await planner.socket.send(planner.peers[0], node_plan(1, lease_seconds=3_000.0))
    await until(lambda: any(isinstance(heard, NodeReport) and heard.applied.n == 1 for heard in planner.heard))
    await member.link.close()
    await planner.stop()


@over_loopback
async def test_older_plans_and_grants_of_older_terms_are_ignored(context: zmq.asyncio.Context) -> None:
    planner = Planner(context, term=2)
    planner.plan = node_plan(5, term=2)
    planner.grants = False
    member = Member(context, planner.socket.address)
    await until(lambda: bool(member.plans))
    peer = planner.peers[0]
    for older in (node_plan(4, term=2), node_plan(9, term=1)):
        await planner.socket.send(peer, older)
    await until(lambda: member.link.counters.stale_plans == 2)
    await until(lambda: member.link.counters.reports > 0)
    await planner.socket.send(
        peer, LeaseGrant(report_id=member.link.counters.reports, revision=Revision(term=1, n=9), seconds={"u1": 60.0})
    )
    await until(lambda: member.link.counters.stale_grants == 1)
    assert not member.leased
    await planner.socket.send(peer, node_plan(6, term=2))
    await until(lambda: len(member.plans) == 2)
    assert [plan.revision.n for plan in member.plans] == [5, 6]
    await member.link.close()
    await planner.stop()


@over_loopback
async def test_applying_the_same_revision_twice_changes_nothing(context: zmq.asyncio.Context) -> None:
    planner = Planner(context)
    member = Member(context, planner.socket.address)
    await until(lambda: bool(member.plans))
    await until(lambda: any(isinstance(heard, NodeReport) and heard.applied.n == 1 for heard in planner.heard))
    await planner.socket.send(planner.peers[0], node_plan(1))
    await planner.socket.send(planner.peers[0], node_plan(0))  # shows that the one before it has been taken
    await until(lambda: member.link.counters.stale_plans == 1)
    await planner.socket.send(planner.peers[0], node_plan(2))
    await until(lambda: member.applied.n == 2)
    assert [plan.revision.n for plan in member.plans] == [1, 2]
    await member.link.close()
    await planner.stop()


@over_loopback
async def test_a_slow_application_costs_no_lease_and_only_the_newest_waits(context: zmq.asyncio.Context) -> None:
    applied: list[int] = []
    gate = asyncio.Event()

    async def slowly(plan: NodePlan) -> None:
        await gate.wait()
        applied.append(plan.revision.n)

    planner = Planner(context)
    member = Member(context, planner.socket.address, on_plan=slowly)
    await until(lambda: member.leased)
    for n in (2, 3, 4):
        await planner.socket.send(planner.peers[0], node_plan(n))
    await until(lambda: member.link.revision.n == 4)
    gate.set()
    await until(lambda: len(applied) == 2)
    assert applied == [1, 4]
    await member.link.close()
    await planner.stop()


@over_loopback
async def test_a_plan_that_could_not_be_applied_is_tried_again_when_sent_again(context: zmq.asyncio.Context) -> None:
    seen: list[int] = []

    def fails_once(plan: NodePlan) -> None:
        seen.append(plan.revision.n)
        if len(seen) == 1:
            raise Terminal("no room")

    planner = Planner(context)
    member = Member(context, planner.socket.address, on_plan=fails_once)
    await until(lambda: member.link.counters.failed_plans == 1)
    await planner.socket.send(planner.peers[0], node_plan(1))
    await until(lambda: seen == [1, 1])
    await member.link.close()
    await planner.stop()


@over_loopback
async def test_a_restarted_planner_is_greeted_anew(context: zmq.asyncio.Context) -> None:
    first = Planner(context)
    address = first.socket.address
    member = Member(context, address)
    await until(lambda: member.leased)
    await first.stop()
    await until(lambda: not member.link.connected)
    assert member.leased  # a lost planner takes no lease away: time does
    second = await bound(context, address, term=2)
    await until(lambda: member.applied.term == 2)
    assert isinstance(second.heard[0], Hello)
    assert member.link.counters.lost == {"disconnected": 1} | {
        code: count for code, count in member.link.counters.lost.items() if code == "no_welcome"
    }
    await member.link.close()
    await second.stop()


@over_loopback
async def test_a_silent_planner_is_given_up_and_dialled_anew(context: zmq.asyncio.Context) -> None:
    planner = Planner(context)
    planner.grants = False
    planner.plan = None
    member = Member(context, planner.socket.address)
    await until(lambda: member.link.counters.lost.get("silent", 0) >= 2)
    assert sum(isinstance(heard, Hello) for heard in planner.heard) >= 2
    planner.grants = True
    planner.plan = node_plan(1)
    await until(lambda: member.leased)
    await member.link.close()
    await planner.stop()


@over_loopback
async def test_a_refusal_is_retried_and_a_superseded_boot_ends(context: zmq.asyncio.Context) -> None:
    planner = Planner(context)
    planner.refuse = "not_leading"
    member = Member(context, planner.socket.address)
    await until(lambda: member.link.counters.lost.get("not_leading", 0) >= 2)
    planner.refuse = "a code that the other side made up"
    await until(lambda: member.link.counters.lost.get("refused", 0) >= 1)
    planner.refuse = "superseded"
    with pytest.raises(Superseded):
        await member.task
    assert not member.leased
    await planner.stop()


@over_loopback
async def test_bodies_are_fetched_by_digest(context: zmq.asyncio.Context) -> None:
    planner = Planner(context)
    member = Member(context, planner.socket.address)
    unknown = body_digest(b"never seen")
    assert await member.link.fetch([body_digest(BODY), unknown]) == {body_digest(BODY): BODY}
    await member.link.close()
    await planner.stop()


@over_loopback
async def test_a_fetch_outlives_a_planner_restart(context: zmq.asyncio.Context) -> None:
    first = Planner(context)
    address = first.socket.address
    member = Member(context, address)
    await until(lambda: member.link.connected)
    await first.stop()
    await until(lambda: not member.link.connected)
    fetching = asyncio.create_task(member.link.fetch([body_digest(BODY)]))
    second = await bound(context, address, term=2)
    assert await fetching == {body_digest(BODY): BODY}
    await member.link.close()
    await second.stop()


@over_loopback
async def test_i11_a_fetch_nobody_answers_ends(context: zmq.asyncio.Context) -> None:
    member = Member(context, "tcp://127.0.0.1:1", pacing=Pacing(fetch_timeout=0.05))
    with pytest.raises(FetchTimeout):
        await member.link.fetch([body_digest(BODY)])
    await member.link.close()


@over_loopback
async def test_malformed_frames_are_counted_and_dropped_by_the_planner(context: zmq.asyncio.Context) -> None:
    planner = Planner(context)
    stranger = context.socket(zmq.DEALER)
    stranger.connect(planner.socket.address)
    for frames in ([b"\xc1"], [b""], [b"\x81\xa4type\xa4nope"], [b"a", b"b"], [b"x" * (MAX_FRAME_BYTES + 1)]):
        await stranger.send_multipart(frames)
    await until(lambda: planner.socket.counters.malformed == 5)
    # The very same connection still works.
    await stranger.send(TO_PLANNER.encode(Hello(member="late", role="daemon", boot="b")))
    await until(lambda: planner.heard == [Hello(member="late", role="daemon", boot="b")])
    stranger.close(linger=0)
    await planner.stop()


@over_loopback
async def test_a_frame_beyond_all_bounds_ends_its_connection_and_nobody_elses(context: zmq.asyncio.Context) -> None:
    planner = Planner(context)
    member = Member(context, planner.socket.address)
    await until(lambda: member.leased)
    stranger = context.socket(zmq.DEALER)
    stranger.connect(planner.socket.address)
    await stranger.send(b"x" * (2 * MAX_FRAME_BYTES + 1))
    before = member.link.counters.reports
    await until(lambda: member.link.counters.reports >= before + 3)
    assert member.link.counters.connections == 1
    stranger.close(linger=0)
    await member.link.close()
    await planner.stop()


@over_loopback
async def test_malformed_frames_are_counted_and_dropped_by_the_member(context: zmq.asyncio.Context) -> None:
    planner = Planner(context)
    member = Member(context, planner.socket.address)
    await until(lambda: member.leased)
    raw = planner.socket._socket
    for frames in ([b"\xc1"], [b"a", b"b"], [b"x" * (MAX_FRAME_BYTES + 1)]):
        await raw.send_multipart([planner.peers[0], *frames])
    await until(lambda: member.link.counters.malformed == 3)
    await planner.socket.send(planner.peers[0], node_plan(2))
    await until(lambda: member.applied.n == 2)
    assert member.link.counters.connections == 1
    await member.link.close()
    await planner.stop()


@over_loopback
async def test_a_peer_of_another_protocol_version_is_refused_and_counted(context: zmq.asyncio.Context) -> None:
    planner = Planner(context)
    member = MemberLink(
        context,
        planner.socket.address,
        lambda: Hello(member="new", role="daemon", boot="b", oldest_version=98, newest_version=99),
        on_plan=lambda _: None,
        report=lambda report_id: NodeReport(report_id=report_id, applied=NO_REVISION),
        leases=LeaseTable(),
        pacing=PACING,
    )
    running = asyncio.create_task(member.run())
    await until(lambda: member.counters.lost.get("version_mismatch", 0) >= 2)
    assert planner.socket.counters.version_mismatch >= 2
    assert planner.heard == []
    await member.close()
    await running
    await planner.stop()


@over_loopback
async def test_sending_to_a_peer_that_is_gone_is_counted_and_harms_nobody(context: zmq.asyncio.Context) -> None:
    planner = Planner(context)
    assert not await planner.socket.send(b"\x00gone", node_plan(1))
    assert planner.socket.counters.unroutable == 1
    await planner.stop()


@over_loopback
async def test_an_address_in_use_is_an_error_at_once(context: zmq.asyncio.Context) -> None:
    planner = Planner(context)
    with pytest.raises(zmq.ZMQError):
        PlannerSocket(context, planner.socket.address, term=1)
    await planner.stop()
