"""One request while the core works on it."""

from dataclasses import dataclass, field

from kvgrove_daemon.accounting import Zone
from kvgrove_daemon.cache.store import Build
from kvgrove_daemon.model_host import HostedModel
from kvgrove_daemon.warmup import WarmTarget
from kvgrove_protocol.fence import Fence
from kvgrove_protocol.reasons import MissReason


@dataclass
class Active:
    """Between admission and its last token. Belongs to the core thread."""

    id: str
    """Unique in this node: request ids are only unique per gateway."""
    peer: bytes | None
    """Who gets the replies; None for warm-up."""
    request_id: str
    namespace_uid: str
    namespace: str
    model: HostedModel
    fence: Fence | None
    build: Build
    prompt_tokens: int
    reused: int
    missed: dict[MissReason, int]
    arrived: float
    zones: list[Zone] = field(default_factory=list)
    warm: WarmTarget | None = None
    generated: int = 0
