"""What the export counts; on the node's registry, only where the export is on."""

from prometheus_client import CollectorRegistry, Counter, Gauge


class ExportMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.batches = Counter("kvgrove_node_kv_event_batches", "Batches published for others", registry=registry)
        self.blocks = Counter(
            "kvgrove_node_kv_event_blocks", "Blocks in published events, by kind", ["kind"], registry=registry
        )
        self.dropped = Counter(
            "kvgrove_node_kv_events_dropped",
            "Items for the publisher that found no room, by kind; after an overflow readers are told to begin anew",
            ["kind"],
            registry=registry,
        )
        self.replays = Counter(
            "kvgrove_node_kv_event_replays", "Replay and listing requests, by outcome", ["outcome"], registry=registry
        )
        self.up = Gauge("kvgrove_node_kv_events_up", "1 while the publisher runs", registry=registry)
