"""What the core thread looks at and speaks to, injected."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from kvgrove_daemon.metrics import NodeMetrics
from kvgrove_daemon.namespaces import PlanTable
from kvgrove_link.tracing import NO_TRACING, Tracing
from kvgrove_protocol.data import ToGateway


@dataclass(frozen=True)
class Surroundings:
    """What requests are judged by, and where their replies go."""

    table: Callable[[], PlanTable]
    lease_valid: Callable[[str], bool]
    send: Callable[[bytes, ToGateway], None]
    clock: Callable[[], float]
    throwaway: Callable[[], bytes]
    metrics: NodeMetrics
    tracing: Tracing = NO_TRACING
    wall_ns: Callable[[], int] = time.time_ns
    """Of spans alone: nothing is decided by it."""
