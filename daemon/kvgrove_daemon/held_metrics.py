"""How many bytes namespaces hold on which tier, now and over time.

Bytes are looked at once a heartbeat and taken to have stayed the same since the last look: that is the integral that
storage is priced by. Labels are the plan's namespaces and the tiers; a namespace that is gone takes its series along.
"""

from collections.abc import Collection, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge

Held = Mapping[tuple[str, str], int]
"""(namespace's name, tier) -> bytes."""


class HeldMetrics:
    """Mutable; `show` is for one thread."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._held: Held = {}
        self._at: float | None = None
        self.bytes = Gauge(
            "kvgrove_node_held_bytes", "Bytes that blocks of a namespace take, by tier", ["namespace", "tier"],
            registry=registry,
        )  # fmt: skip
        self.byte_seconds = Counter(
            "kvgrove_node_held_byte_seconds_total",
            "Bytes held times the seconds they were held for, by tier: what storage is priced by",
            ["namespace", "tier"],
            registry=registry,
        )

    def show(self, held: Held, planned: Collection[str], now: float) -> None:
        """``held``: at ``now``, in seconds of one clock. Namespaces that are not ``planned`` are shown no more."""
        since = 0.0 if self._at is None else max(now - self._at, 0.0)
        for (namespace, tier), count in self._held.items():
            if namespace in planned:
                self.byte_seconds.labels(namespace, tier).inc(count * since)
            else:
                for metric in (self.bytes, self.byte_seconds):
                    metric.remove_by_labels({"namespace": namespace})
        shown = {key: count for key, count in held.items() if key[0] in planned}
        for key in self._held.keys() - shown.keys():
            if key[0] in planned:
                self.bytes.labels(*key).set(0)
        for key, count in shown.items():
            self.bytes.labels(*key).set(count)
        self._held, self._at = shown, now
