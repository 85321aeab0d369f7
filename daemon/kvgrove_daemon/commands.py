"""What the core thread is asked to do. Queued from any thread, carried out between engine steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvgrove_daemon.cache.history import RemovalCause
from kvgrove_daemon.erase_orders import EraseOrder
from kvgrove_daemon.model_host import HostedModel
from kvgrove_daemon.quotas import RoomPlan
from kvgrove_daemon.warmup import Served, WarmTarget
from kvgrove_protocol.data import Generate
from kvgrove_protocol.fence import Fence


@dataclass(frozen=True)
class Start:
    """Answer one prompt for ``peer``."""

    peer: bytes
    request: Generate
    arrived: float
    """Seconds of the core's clock."""


@dataclass(frozen=True)
class Look:
    """Tell ``peer`` what one prompt would reuse here, and why not the rest."""

    peer: bytes
    request: Generate


@dataclass(frozen=True)
class Stop:
    """The caller of one request has gone."""

    peer: bytes
    request_id: str


@dataclass(frozen=True)
class PeerLost:
    """A gateway has gone: all it asked for, and its subscription."""

    peer: bytes


@dataclass(frozen=True)
class Follow:
    """Send ``peer`` what it lacks and then every batch (``on``), or no more of them."""

    peer: bytes
    on: bool
    boot: str = ""
    after: int = -1
    """What it has: the batches up to this one of ``boot``. Nothing by default."""


@dataclass(frozen=True)
class Host:
    """A model has been loaded."""

    model: HostedModel


@dataclass(frozen=True)
class Unhost:
    """A model is planned no more: let go of it once nobody uses it."""

    generation: bytes


@dataclass(frozen=True)
class WarmFence:
    """Of the plan that a warm set belongs to."""

    fence: Fence
    coming: tuple[int, ...]
    """Epochs of the versions of documents that are not in force yet."""


@dataclass(frozen=True)
class Warm:
    """The plan was swapped: these are the warm targets now, and this is each namespace's room."""

    targets: Sequence[WarmTarget]
    rooms: Mapping[str, RoomPlan]
    """By namespace UID."""
    fences: Mapping[Served, WarmFence]
    """What the targets of each namespace by each generation were resolved under, also where there are none."""


@dataclass(frozen=True)
class Drop:
    """Reclaim what can no longer be reached. Freshness does not wait for it: the keys are already unformable."""

    cause: RemovalCause
    namespace_uid: str
    root: bytes | None = None
    document: str | None = None


@dataclass(frozen=True)
class Erase:
    """These are all that the plan wants erased: what is new is cut before anything that is queued behind this."""

    orders: Sequence[EraseOrder]
    settled: bool
    """Every model that is planned is loaded, or failed."""


@dataclass(frozen=True)
class Restored:
    """A load from a slower tier has ended, well or not: its worker has let go of the slots (`restorer`)."""

    request_id: str
    upto_block: int
    """Blocks below are whole, from the first on."""


@dataclass(frozen=True)
class Concluded:
    """A worker of the slower tiers has ended something: the core looks what."""


@dataclass(frozen=True)
class HandOver:
    """The process is to end: bring what only its memory holds to the tiers that outlive it."""


Command = (
    Start | Look | Stop | PeerLost | Follow | Host | Unhost | Warm | Drop | Erase | Restored | Concluded | HandOver
)
