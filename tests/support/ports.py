"""Ports for processes that must be told theirs before they start. Where a process can bind 0 and say, it does."""

from __future__ import annotations

import random
import socket

LOOPBACK = "127.0.0.1"
# Below the range from which the kernel takes the near ends of connections: none of those can take a port that was free.
_PORTS = range(20_000, 32_000)
# Not the seeded one: two runs beside each other would choose alike.
_CHOICE = random.SystemRandom()
_given: set[int] = set()


def free_ports(count: int) -> list[int]:
    """Ports on which nobody listens, all different, and none that this process was given before."""
    found: list[int] = []
    while len(found) < count:
        port = _CHOICE.choice(_PORTS)
        if port in _given:
            continue
        with socket.socket() as probe:
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue
        _given.add(port)
        found.append(port)
    return found


def free_port() -> int:
    return free_ports(1)[0]
