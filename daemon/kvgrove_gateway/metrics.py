"""What the gateway counts. Labels are bounded: namespaces of the plan, closed lists of reasons, codes and tiers.

Never a user, key, model text or prompt (I12). A namespace that leaves the plan takes its series along.
"""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from kvgrove_gateway.saving_metrics import SavingMetrics
from kvgrove_protocol.data import Usage
from kvgrove_protocol.reasons import MissReason

NO_NAMESPACE = "-"
"""Label of requests that named none that exists for the caller."""

_TTFT_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_DECISION_BUCKETS = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05)


class Metrics:
    """One registry per gateway, so that two can live in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        self.savings = SavingMetrics(registry)
        self.requests = Counter(
            "kvgrove_gateway_requests",
            "Chat requests by outcome (`ok` or the error code)",
            ["namespace", "outcome"],
            registry=registry,
        )
        self.prompt_tokens = Counter(
            "kvgrove_prompt_tokens", "Prompt tokens of answered requests", ["namespace"], registry=registry
        )
        self.reused_tokens = Counter(
            "kvgrove_reused_tokens", "Prompt tokens whose KV was reused", ["namespace", "tier"], registry=registry
        )
        self.missed_tokens = Counter(
            "kvgrove_missed_tokens",
            "Prompt tokens that were computed, by reason",
            ["namespace", "reason"],
            registry=registry,
        )
        self.completion_tokens = Counter(
            "kvgrove_completion_tokens", "Tokens generated", ["namespace"], registry=registry
        )
        self.ttft = Histogram(
            "kvgrove_time_to_first_token_seconds",
            "Seconds from the request's arrival to its first token",
            ["namespace"],
            buckets=_TTFT_BUCKETS,
            registry=registry,
        )
        self.decision = Histogram(
            "kvgrove_router_decision_seconds", "Seconds to choose a node", buckets=_DECISION_BUCKETS, registry=registry
        )
        self.route_fallbacks = Counter(
            "kvgrove_router_fallbacks",
            "Decisions made by load alone because the deadline had passed",
            registry=registry,
        )
        self.retries = Counter(
            "kvgrove_gateway_retries", "Requests sent or resolved again, by reason", ["reason"], registry=registry
        )
        self.resyncs = Counter(
            "kvgrove_router_resyncs", "Snapshots asked for, by reason", ["reason"], registry=registry
        )
        self.events_ignored = Counter(
            "kvgrove_router_events_ignored", "Residency messages of no use, by reason", ["reason"], registry=registry
        )
        self.sources = Gauge(
            "kvgrove_router_sources", "Nodes by the state of their residency stream", ["state"], registry=registry
        )
        self.engines = Gauge(
            "kvgrove_router_engines", "Engines that are not ours by the state of their KV events", ["state"],
            registry=registry,
        )  # fmt: skip
        self.engine_blocks = Gauge(
            "kvgrove_router_engine_blocks", "Blocks an engine that is not ours holds, as far as they could be named",
            ["engine"], registry=registry,
        )  # fmt: skip
        self.events_unmapped = Counter(
            "kvgrove_router_engine_blocks_unmapped", "Blocks of such engines that could not be named, by reason",
            ["reason"], registry=registry,
        )  # fmt: skip
        self.index_drift = Gauge(
            "kvgrove_index_drift",
            "Blocks by which what was applied of a node's events differs from what the node lists, at least 1 if so. "
            "Counting what the index still holds of it would walk all keys: see kvgrove_router_index_missing",
            ["node"],
            registry=registry,
        )
        self.index_missing = Counter(
            "kvgrove_router_index_missing",
            "Removals of blocks that the index did not hold, one looked up for each event: they had given way for want "
            "of room, or were never applied",
            registry=registry,
        )
        self.builds_heard = Counter(
            "kvgrove_router_builds_heard", "Builds under way that nodes told of", registry=registry
        )
        self.builds_left_out = Counter(
            "kvgrove_router_builds_left_out",
            "Builds that nodes told of and that found no room among the notes",
            registry=registry,
        )
        self.builds_unnoted = Counter(
            "kvgrove_router_builds_unnoted",
            "Prompts that were sent and not noted as builds, for want of room among this gateway's own notes",
            registry=registry,
        )
        self.malformed = Counter(
            "kvgrove_gateway_malformed_frames", "Frames from nodes that were dropped", registry=registry
        )
        self.link_losses = Counter(
            "kvgrove_gateway_node_losses", "Links to nodes that were given up, by reason", ["reason"], registry=registry
        )
        self.key_file_failures = Counter(
            "kvgrove_gateway_key_file_failures", "Broken keys files that were not taken over", registry=registry
        )
        self.certificate_failures = Counter(
            "kvgrove_gateway_certificate_failures", "Renewed TLS certificates that could not be used", registry=registry
        )
        self.slow_clients = Counter(
            "kvgrove_gateway_slow_clients", "Requests cancelled because the caller did not read", registry=registry
        )
        self.denied = Counter(
            "kvgrove_gateway_denied", "Requests refused for who the caller is", ["code"], registry=registry
        )
        self.in_flight = Gauge("kvgrove_gateway_requests_in_flight", "Requests under way", registry=registry)
        self.imbalance = Gauge(
            "kvgrove_router_imbalance_ratio",
            "Largest prefill backlog of a connected node over the mean of them all: 1 is even, 0 means no backlog",
            registry=registry,
        )
        self.index_blocks = Gauge("kvgrove_router_index_blocks", "Blocks known to the router", registry=registry)
        self.index_dropped = Gauge(
            "kvgrove_router_index_dropped", "Blocks that found no room in the index", registry=registry
        )
        self.nodes = Gauge("kvgrove_gateway_nodes", "Nodes by link state", ["state"], registry=registry)
        self.lease_seconds = Gauge(
            "kvgrove_gateway_lease_remaining_seconds",
            "Seconds of freshness lease left",
            ["namespace"],
            registry=registry,
        )
        self.plan_term = Gauge("kvgrove_gateway_plan_term", "Term of the applied plan", registry=registry)
        self.plan_number = Gauge(
            "kvgrove_gateway_plan_number", "Number of the applied plan within its term", registry=registry
        )

    def drift(self, node: str, blocks: int) -> None:
        """Set or clear the drift of one node; there is a series only for nodes that say what they list."""
        self.index_drift.labels(node).set(blocks)

    def drift_gone(self, node: str) -> None:
        """The node is not followed any more."""
        self.index_drift.remove_by_labels({"node": node})

    def answered(self, namespace: str, usage: Usage, tier: str, prefill_tokens_per_s: float) -> None:
        """Account one answer; the sums equal what callers were told. ``prefill_tokens_per_s``: of the node."""
        self.savings.answered(namespace, usage, prefill_tokens_per_s)
        self.prompt_tokens.labels(namespace).inc(usage.prompt)
        self.completion_tokens.labels(namespace).inc(usage.completion)
        self.reused_tokens.labels(namespace, tier or "none").inc(usage.reused)
        # Also those that are 0: a counter that first appears with a value has no rate, and what grew is not seen.
        for reason in MissReason:
            self.missed_tokens.labels(namespace, reason.value).inc(usage.missed.get(reason, 0))

    def forget(self, namespaces: Iterable[str]) -> None:
        """Drop the series of namespaces that are gone."""
        labelled = (
            self.requests, self.prompt_tokens, self.reused_tokens, self.missed_tokens,
            self.completion_tokens, self.ttft, self.lease_seconds,
        )  # fmt: skip
        for namespace in namespaces:
            self.savings.forget(namespace)
            for metric in labelled:
                metric.remove_by_labels({"namespace": namespace})

    def render(self) -> bytes:
        return generate_latest(self.registry)
