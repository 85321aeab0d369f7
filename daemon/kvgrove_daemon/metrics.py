"""The daemon's metrics. Labels are bounded: namespaces of the plan, reasons, tiers, kinds (I11, I12).

Warm-up is counted apart and left out of the token counters, so that it never flatters a hit ratio (WRM-01).
"""

import ssl
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from kvgrove_daemon.cache.flights import FlightStats
from kvgrove_daemon.cache.history import RemovalCause
from kvgrove_daemon.cache.store import StoreStats
from kvgrove_daemon.held_metrics import HeldMetrics
from kvgrove_daemon.tier_figures import TierFigures
from kvgrove_protocol.errors import Terminal
from kvgrove_protocol.events import HOST
from kvgrove_protocol.reasons import BypassReason, MissReason

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class MetricsTlsUnusable(Terminal):
    """The files for HTTPS of the metrics' endpoint cannot be used."""

    code = "metrics_tls_unusable"


class MetricsPortInUse(Terminal):
    code = "port_in_use"


class NodeMetrics:
    """One registry per daemon, so that several can live in one process in tests."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._shown: dict[tuple[int, str], int] = {}
        self.requests = Counter(
            "kvgrove_node_requests_total",
            "Requests ended, by outcome code",
            ["namespace", "code"],
            registry=self.registry,
        )
        self.prompt_tokens = Counter(
            "kvgrove_node_prompt_tokens_total",
            "Prompt tokens of admitted requests",
            ["namespace"],
            registry=self.registry,
        )
        self.reused_tokens = Counter(
            "kvgrove_node_reused_tokens_total",
            "Prompt tokens taken from the cache",
            ["namespace", "tier"],
            registry=self.registry,
        )
        self.missed_tokens = Counter(
            "kvgrove_node_missed_tokens_total",
            "Prompt tokens computed, by reason",
            ["namespace", "reason"],
            registry=self.registry,
        )
        self.warmup_tokens = Counter(
            "kvgrove_node_warmup_tokens_total", "Tokens computed by warm-up", ["namespace"], registry=self.registry
        )
        self.queue_seconds = Histogram(
            "kvgrove_node_queue_seconds", "Seconds from arrival to admission", buckets=_SECONDS, registry=self.registry
        )
        self.lookup_seconds = Histogram(
            "kvgrove_node_lookup_seconds",
            "Seconds for keys, match and lease of one prompt",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.ttft_seconds = Histogram(
            "kvgrove_node_time_to_first_token_seconds",
            "Seconds from arrival to the first token",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.restore_seconds = Histogram(
            "kvgrove_node_restore_seconds",
            "Seconds from a request's place in the pool until blocks of slower tiers are in it",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.prefill_seconds = Histogram(
            "kvgrove_node_prefill_seconds",
            "Seconds from a request's first step in the engine to its first token",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.output_token_seconds = Histogram(
            "kvgrove_node_time_per_output_token_seconds",
            "Seconds per token of an answer after its first: decode steps, and what they waited for",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.bypassed = Counter(
            "kvgrove_node_stores_bypassed_total",
            "Computed blocks that were not stored",
            ["reason"],
            registry=self.registry,
        )
        self.removed_blocks = Counter(
            "kvgrove_node_removed_blocks_total",
            "READY blocks that went from the engine's pools, by cause",
            ["cause"],
            registry=self.registry,
        )
        self.evicted_for_requests = Counter(
            "kvgrove_evictions_on_request_path_total",
            "Blocks evicted while a request waited for their room: relief made too little",
            ["tier"],
            registry=self.registry,
        )
        self.blocks = Gauge("kvgrove_node_blocks", "Blocks of the pool by state", ["state"], registry=self.registry)
        self.flights_led = Counter(
            "kvgrove_flight_led_total", "Builds that others may wait for", registry=self.registry
        )
        self.flights_joined = Counter(
            "kvgrove_flight_joined_total", "Times that a request began to wait for a build", registry=self.registry
        )
        self.flight_take_overs = Counter(
            "kvgrove_flight_take_overs_total", "Flights led by one who had waited", registry=self.registry
        )
        self.flight_time_outs = Counter(
            "kvgrove_flight_time_outs_total", "Waits for a build whose bound ran out", registry=self.registry
        )
        self.flights_waiting = Gauge("kvgrove_flight_waiting", "Requests that wait for a build", registry=self.registry)
        self.waiting_for_room = Gauge(
            "kvgrove_node_waiting_for_room", "Requests that wait for room in a pool", registry=self.registry
        )
        self.builds_untold = Counter(
            "kvgrove_node_builds_untold_total",
            "Builds that gateways were not told of, because as many as may be were under way",
            registry=self.registry,
        )
        self.held = HeldMetrics(self.registry)
        self.tiers = TierFigures()
        self.registry.register(self.tiers)
        self.frames_dropped = Counter(
            "kvgrove_node_frames_dropped_total",
            "Frames and peers dropped on the data socket",
            ["kind"],
            registry=self.registry,
        )
        self.peers_refused = Counter(
            "kvgrove_node_peers_refused_total",
            "Peers that did not get into the data socket: no_curve, unknown_key or broken_off",
            ["reason"],
            registry=self.registry,
        )
        self.lease_remaining = Gauge(
            "kvgrove_node_lease_remaining_seconds",
            "Seconds of freshness lease left",
            ["namespace"],
            registry=self.registry,
        )

        self._begin_at_zero()

    def _begin_at_zero(self) -> None:
        """Counters over closed lists are there from the start: one that first appears with a value has no rate."""
        self.evicted_for_requests.labels(HOST)
        for counter, values in ((self.removed_blocks, RemovalCause), (self.bypassed, BypassReason)):
            for value in values:
                counter.labels(value.value)

    def count_prompt(
        self, namespace: str, *, prompt: int, reused: Mapping[str, int], missed: Mapping[MissReason, int]
    ) -> None:
        """One admitted request; ``reused`` (by tier) + ``missed`` = ``prompt``."""
        self.prompt_tokens.labels(namespace).inc(prompt)
        for tier, count in reused.items():
            if count:
                self.reused_tokens.labels(namespace, tier).inc(count)
        for reason in MissReason:  # also those that are 0, for the same reason
            self.missed_tokens.labels(namespace, reason.value).inc(missed.get(reason, 0))

    def forget(self, namespaces: Iterable[str]) -> None:
        """Drop the series of namespaces that are gone."""
        labelled = (
            self.requests, self.prompt_tokens, self.reused_tokens, self.missed_tokens, self.warmup_tokens,
            self.lease_remaining,
        )  # fmt: skip
        for namespace in namespaces:
            for metric in labelled:
                metric.remove_by_labels({"namespace": namespace})

    def show_stores(self, stats: Sequence[StoreStats]) -> None:
        """Gauges and counters of the node's pools, summed. Counters of the stores only grow."""
        for state in ("free", "ready", "retiring", "private", "quarantined"):
            self.blocks.labels(state).set(sum(getattr(store, state) for store in stats))
        for cause in RemovalCause:
            self._raise(self.removed_blocks, cause.value, sum(store.removed.get(cause, 0) for store in stats))
        self._raise(self.evicted_for_requests, HOST, sum(store.evicted_for_requests for store in stats))
        for reason in BypassReason:
            self._raise(self.bypassed, reason.value, sum(store.bypassed.get(reason, 0) for store in stats))

    def show_waiting(self, flights: FlightStats, for_room: int) -> None:
        """Who waits, and how waiting for others' builds went so far. Counters of the flights only grow."""
        self.flights_waiting.set(flights.waiting)
        self.waiting_for_room.set(for_room)
        self._raise(self.flights_led, "", flights.led)
        self._raise(self.flights_joined, "", flights.joined)
        self._raise(self.flight_take_overs, "", flights.take_overs)
        self._raise(self.flight_time_outs, "", flights.time_outs)

    def show_beacons(self, untold: int) -> None:
        """Builds that were not told so far; it only grows."""
        self._raise(self.builds_untold, "", untold)

    def _raise(self, counter: Counter, label: str, total: int) -> None:
        """``label`` empty: the counter has none."""
        shown = self._shown.get((id(counter), label), 0)
        if total > shown:
            (counter.labels(label) if label else counter).inc(total - shown)
            self._shown[id(counter), label] = total

    def serve(self, address: str, port: int, tls: tuple[Path, Path] | None = None) -> int:
        """Start the HTTP endpoint; answers the port that was bound. ``tls``: PEM certificate and key, for HTTPS.

        Raises MetricsPortInUse or MetricsTlsUnusable.
        """
        certificate, key = (str(path) for path in tls) if tls is not None else (None, None)
        if certificate is not None:
            try:
                ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key)
            except OSError as error:
                raise MetricsTlsUnusable(
                    f"--metrics-tls-cert {certificate}, --metrics-tls-key {key}: {error.strerror or error}; give a PEM "
                    "certificate and its key",
                    field="--metrics-tls-cert",
                ) from None
        try:
            server, _ = start_http_server(port, address, registry=self.registry, certfile=certificate, keyfile=key)
        except OSError as error:
            raise MetricsPortInUse(
                f"--metrics {address}:{port}: {error.strerror}; choose another port, or 0 for any"
            ) from None
        return int(server.server_port)
