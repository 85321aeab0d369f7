"""One request while the core works on it."""

from dataclasses import dataclass, field

from kvgrove_daemon.accounting import Zone
from kvgrove_daemon.cache.store import Build
from kvgrove_daemon.commands import Start
from kvgrove_daemon.judging import Task
from kvgrove_daemon.request_life import RequestState
from kvgrove_daemon.restorer import Restore
from kvgrove_protocol.events import HOST
from kvgrove_protocol.reasons import MissReason


@dataclass(repr=False)
class Work:
    """A task with its place in the pool."""

    task: Task
    build: Build
    restore: Restore | None
    """What of it is loaded first."""
    why: dict[bytes, MissReason]
    """Key -> why it is computed, where the place itself is the reason."""
    zones: list[Zone]
    reused: dict[str, int]
    """Tier -> prompt tokens taken from there."""
    private_realm: bytes = b""
    """Of the caller; empty where the request is served cold."""
    missed: dict[MissReason, int] = field(default_factory=dict)
    said: list[int] = field(default_factory=list)
    """The answer's token ids so far."""

    @property
    def generated(self) -> int:
        return len(self.said)

    @property
    def reused_tokens(self) -> int:
        return sum(self.reused.values())

    @property
    def tier(self) -> str:
        """The farthest tier that something was taken from."""
        return next(reversed(self.reused), HOST)


@dataclass(repr=False)
class Active:
    """Between arrival and end. Belongs to the core thread; its `state` is changed by `request_life.step` alone."""

    number: int
    """Unique in this node, in order of arrival: request ids are only unique per gateway."""
    start: Start | None
    """None for warm-up, which answers nobody."""
    namespace_uid: str
    arrived: float
    state: RequestState = RequestState.ARRIVED
    work: Work | None = None
    """While it holds a build."""
    began: float = 0.0
    """When it got its place."""
    ran: float = 0.0
    """When the engine got it."""
    spoke: float = 0.0
    """When its first token came."""
    room_until: float | None = None
    """Since it first had to wait for room: when it is refused."""

    @property
    def id(self) -> str:
        return str(self.number)

    @property
    def peer(self) -> bytes | None:
        return self.start.peer if self.start is not None else None

    @property
    def request_id(self) -> str:
        return self.start.request.request_id if self.start is not None else "warm-up"
