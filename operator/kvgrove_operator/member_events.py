"""What happens to the ledger of members, and what it wants done.

Events carry ``now``: seconds of the planner's own CLOCK_BOOTTIME at the moment the event is handled. Effects are to be
carried out in their order, each before the next is begun; where the records of one member are slow to write, only what
goes to that member has to wait for them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from kvgrove_protocol.control import Hello, LeaseGrant, NodeEndpoint, NodeReport, Refused, Revision
from kvgrove_protocol.fence import Fence

# -- durable facts -----------------------------------------------------------------------------------------------------


class MemberRecord(msgspec.Struct, frozen=True, kw_only=True):
    """That this boot of this member may hold a lease on this namespace. Durable before the first grant."""

    uid: str
    member: str
    boot: str
    role: str
    seconds: float
    """The longest lease that may still be running: what a planner that has just started waits for."""


# -- events ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HelloReceived:
    """``peer``: the connection, as the socket names it."""

    now: float
    peer: bytes
    hello: Hello


@dataclass(frozen=True)
class ReportReceived:
    now: float
    peer: bytes
    report: NodeReport


@dataclass(frozen=True)
class GoodbyeReceived:
    now: float
    peer: bytes


@dataclass(frozen=True)
class MemberEnded:
    """Somebody who can know (its parent process) saw the member end.

    To be told before a new process of that member is started: all its boots so far are taken to be over.
    """

    now: float
    member: str


@dataclass(frozen=True)
class MemberGone:
    """What the member ran on was taken out of the fleet, and nobody can say whether its process has ended.

    Its leases run out; then it holds nothing any more. Should it be heard again, it is a member as before.
    """

    now: float
    member: str


@dataclass(frozen=True)
class Issued:
    """What the ledger needs to know of a planned namespace."""

    fence: Fence
    lease_seconds: float
    erasures: tuple[str, ...] = ()
    """Ids of what is to be erased of it."""
    seal: bytes = b""
    """Names the secret that survivors are to be wrapped under."""


@dataclass(frozen=True)
class PlanIssued:
    """A plan is in force: by namespace UID. What it rests on (epochs, secrets) must be durable already.

    Whoever is not in it any more is to be erased. Members are sent the plan by the effects of this event.
    """

    now: float
    namespaces: Mapping[str, Issued]


@dataclass(frozen=True)
class Leading:
    """This planner leads until ``until``; ``now`` or earlier: it does not lead."""

    now: float
    until: float


@dataclass(frozen=True)
class Tick:
    """Time has passed; at least once a second."""

    now: float


Event = HelloReceived | ReportReceived | GoodbyeReceived | MemberEnded | MemberGone | PlanIssued | Leading | Tick

# -- effects -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Persist:
    """Make ``records`` the durable records of ``member``, all of them. Durable before the next effect is begun."""

    member: str
    records: tuple[MemberRecord, ...]


@dataclass(frozen=True)
class Send:
    peer: bytes
    message: LeaseGrant | Refused


@dataclass(frozen=True)
class SendPlan:
    """Compose the plan in force for a member of this role and placement, under this revision, and send it."""

    peer: bytes
    role: str
    placement: str
    """Of a daemon."""
    revision: Revision
    base: Revision
    """The plan that the member has, to be sent the changes since; one that was never issued: the whole is to be sent.
    """
    nodes: tuple[NodeEndpoint, ...]
    """The daemons that gateways may reach now."""


@dataclass(frozen=True)
class Outranked:
    """A member has applied a plan of a later term: another planner leads, or this one has lost its memory.

    Nothing is granted any more. Whoever may lead starts anew under a term above ``term``.
    """

    term: int


Effect = Persist | Send | SendPlan | Outranked
