"""A store whose events are exported over real sockets, and a reader of them that keeps to the protocol."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import zmq
from block_store_rig import BLOCK, chain_of, make_store, serve
from prometheus_client import CollectorRegistry

from kvgrove_daemon.event_log import EventLog
from kvgrove_daemon.followers import Followers
from kvgrove_daemon.kv_events.address import ExportSettings
from kvgrove_daemon.kv_events.export import KvEventExport
from kvgrove_daemon.namespaces import HostedNamespace, PlanTable
from kvgrove_daemon.residency import LoggedResidency
from kvgrove_protocol.control import NamespacePlan
from kvgrove_protocol.events import HOST, NodeLoad
from kvgrove_protocol.fence import Fence
from kvgrove_protocol.identity import Purge

LOAD = NodeLoad(0, 0, 0.0, 0.0, 1)
END = b"\xff" * 8
PATIENCE_MS = 20_000


def table(**export: bool) -> PlanTable:
    """Namespace UID -> whether it opted in."""
    plans = [
        NamespacePlan(
            uid=uid, name=f"team/{uid}", model="m", purge=Purge(1, b"n"), fence=Fence(1, 1, 1), events_export=opted
        )
        for uid, opted in export.items()
    ]
    return PlanTable(namespaces={plan.uid: HostedNamespace(plan, None, {}) for plan in plans})


class Exporting:
    """One store, its event log, and the export; `turn` is what the core does."""

    def __init__(self, folder: Path, slots: int = 256, settings: ExportSettings | None = None) -> None:
        self.table = table(ns=True, secret=False)
        self.log = EventLog("boot")
        self.store = make_store(slots, sink=LoggedResidency(self.log))  # type: ignore[arg-type]
        self.registry = CollectorRegistry()
        self.now = 0.0
        self.export = KvEventExport(
            settings or ExportSettings(f"ipc://{folder}/events", f"ipc://{folder}/replay", None),
            table=lambda: self.table,
            indexes=lambda: {HOST: [self.store.resident.index]},
            nearest=HOST,
            clock=lambda: self.now,
            registry=self.registry,
        )
        self.followers = Followers(self.log, lambda _peer, _message: None, self.export.exporter)

    def turn(self) -> None:
        self.now += 10.0
        self.followers.flush(LOAD)

    def serve(self, raw: bytes, **options: Any) -> list[bytes]:
        """Answer a prompt, and tell the log; answers its keys."""
        chain = chain_of(self.store, raw, **options)
        serve(self.store, chain)
        self.turn()
        return list(chain.keys)

    def count(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0


@dataclass
class Reader:
    """Knows hash -> (parent, tokens) from the stream alone."""

    held: dict[int, tuple[int | None, tuple[int, ...]]] = field(default_factory=dict)
    numbers: list[int] = field(default_factory=list)

    def take(self, payload: bytes) -> list[dict[str, Any]]:
        _, events, rank = msgspec.msgpack.decode(payload)
        assert rank is None
        for event in events:
            match event["type"]:
                case "BlockStored":
                    size, tokens, parent = event["block_size"], event["token_ids"], event["parent_block_hash"]
                    assert len(tokens) == size * len(event["block_hashes"])
                    for at, block in enumerate(event["block_hashes"]):
                        self.held[block] = (parent, tuple(tokens[at * size : (at + 1) * size]))
                        parent = block
                case "BlockRemoved":
                    for block in event["block_hashes"]:
                        del self.held[block]
                case "AllBlocksCleared":
                    self.held.clear()
        return list(events)

    def tokens(self, block: int) -> tuple[int, ...]:
        """Of the prompt that ends with ``block``, read back along the parents."""
        parent, tokens = self.held[block]
        return tokens if parent is None else self.tokens(parent) + tokens


class Wire:
    """A reader's sockets."""

    def __init__(self, export: KvEventExport) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.live = self._context.socket(zmq.SUB)
        self.live.subscribe(b"")
        self.live.setsockopt(zmq.RCVHWM, 0)
        self.live.connect(export.address)
        self.replay = self._context.socket(zmq.DEALER)
        self.replay.setsockopt(zmq.RCVHWM, 0)
        if export.replay_address is not None:
            self.replay.connect(export.replay_address)

    def receive(self) -> tuple[int, bytes]:
        assert self.live.poll(PATIENCE_MS), "nothing was published"
        topic, number, payload = self.live.recv_multipart()
        assert topic == b""
        return int.from_bytes(number, "big"), payload

    def ask(self, what: bytes | int, *, meanwhile: Callable[[], None] = lambda: None) -> Iterator[tuple[int, bytes]]:
        """The answer to a replay request, without its end; ``meanwhile`` is called until it begins."""
        self.replay.send_multipart([b"", what.to_bytes(8, "big") if isinstance(what, int) else what])
        deadline = time.monotonic() + PATIENCE_MS / 1000
        while not self.replay.poll(20) and time.monotonic() < deadline:
            meanwhile()
        while True:
            assert self.replay.poll(PATIENCE_MS), "no answer, or one without an end"
            frames = self.replay.recv_multipart()
            assert len(frames) == 4, frames
            if frames[2] == END:
                assert frames == [b"", b"", END, b""]
                return
            assert frames[:2] == [b"", b""]
            yield int.from_bytes(frames[2], "big"), frames[3]

    def close(self) -> None:
        self._context.destroy(0)


@contextmanager
def exporting(folder: Path, **options: Any) -> Iterator[tuple[Exporting, Wire]]:
    with ExitStack() as ends:
        rig = Exporting(folder, **options)
        ends.callback(rig.export.close)
        wire = Wire(rig.export)
        ends.callback(wire.close)
        rig.export.start()
        yield rig, wire


def hashes(keys: Iterable[bytes]) -> list[int]:
    return [int.from_bytes(key[-8:], "big") for key in keys]


__all__ = ["BLOCK", "Exporting", "Reader", "Wire", "exporting", "hashes", "table"]
