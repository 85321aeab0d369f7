"""What protection counts. Labels are closed lists, never a tenant, user or key (I12)."""

from prometheus_client import CollectorRegistry, Counter, Gauge


class ProtectionFigures:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.rate_limited = Counter(
            "kvgrove_gateway_rate_limited",
            "Requests refused for their tenant's allowance: requests, prompt_tokens, concurrent",
            ["limit"],
            registry=registry,
        )
        self.rate_buckets = Gauge(
            "kvgrove_gateway_rate_buckets", "Tenants whose allowance is not full", registry=registry
        )
        self.rate_buckets_dropped = Counter(
            "kvgrove_gateway_rate_buckets_dropped",
            "Allowances forgotten, and thereby full again, for want of room",
            registry=registry,
        )
        self.audit_lost = Counter(
            "kvgrove_gateway_audit_lost",
            "Audit records that were not written: queue_full, write_failed",
            ["reason"],
            registry=registry,
        )
        self.audit_written = Counter("kvgrove_gateway_audit_written", "Audit records written", registry=registry)
        self.connections_cut = Counter(
            "kvgrove_gateway_connections_cut",
            "Connections closed by the gateway: too_many, slow_head, slow_reader",
            ["reason"],
            registry=registry,
        )
        self.file_failures = Counter(
            "kvgrove_gateway_settings_file_failures",
            "Broken settings files that were not taken over: rate_limits",
            ["file"],
            registry=registry,
        )
        self.jwks_fetches = Counter(
            "kvgrove_gateway_jwks_fetches", "Fetches of issuers' keys: ok, failed", ["outcome"], registry=registry
        )
        self.jwks_age = Gauge(
            "kvgrove_gateway_jwks_age_seconds",
            "Seconds since the keys were last read, of the issuer whose keys are oldest; -1: never read",
            registry=registry,
        )
        for reason in ("queue_full", "write_failed"):  # there from the start, so that an increase can be seen
            self.audit_lost.labels(reason)
