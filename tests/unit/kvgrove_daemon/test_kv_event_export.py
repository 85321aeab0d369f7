"""What others read of a node: only of namespaces that opted in, complete or openly incomplete, and never a wait."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import zmq
import zmq.auth
from block_store_rig import chain_of, run_of, serve
from kv_event_rig import BLOCK, PATIENCE_MS, Exporting, Reader, Wire, exporting, hashes, table

from kvgrove_daemon.cache.history import RemovalCause
from kvgrove_daemon.kv_events import outbox as outbox_module
from kvgrove_daemon.kv_events.address import CurveFiles, ExportRefused, ExportSettings, export_settings
from kvgrove_daemon.kv_events.blocks import Gone
from kvgrove_daemon.kv_events.history import History
from kvgrove_daemon.kv_events.publisher import LISTING
from kvgrove_daemon.kv_events.schema import Encoder, fold_name
from kvgrove_link.addresses import stays_here

PROMPT = run_of(10, 4 * BLOCK)


def test_batches_are_what_vllm_publishes(tmp_path: Path) -> None:
    with exporting(tmp_path) as (rig, _):
        rig.turn()
        first, second = hashes(rig.serve(run_of(0, 2 * BLOCK), folds={1: b"fold"}))
        wire_batches = dict(_.ask(0))
    at, events, rank = msgspec.msgpack.decode(wire_batches[1])
    assert isinstance(at, float)
    assert rank is None
    assert events == [
        {
            "type": "BlockStored",
            "block_hashes": [first, second],
            "parent_block_hash": None,
            "token_ids": list(range(2 * BLOCK)),
            "block_size": BLOCK,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
            "extra_keys": [None, [fold_name(b"fold")]],
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
        }
    ]
    assert msgspec.msgpack.decode(wire_batches[0])[1] == [{"type": "AllBlocksCleared"}]  # a new boot says so


def test_a_reader_learns_each_block_with_its_tokens_and_each_removal(tmp_path: Path) -> None:
    with exporting(tmp_path, slots=12) as (rig, wire):
        reader = Reader()
        for start in range(0, 800, 100):  # twice what the pool holds
            rig.serve(run_of(start, 3 * BLOCK))
        rig.serve(run_of(700, 3 * BLOCK) + run_of(5, BLOCK))
        for _, payload in wire.ask(0):
            reader.take(payload)
        ready = hashes(rig.store.snapshot())
        assert set(reader.held) == set(ready)
        longest = hashes(chain_of(rig.store, run_of(700, 3 * BLOCK) + run_of(5, BLOCK)).keys)[-1]
        assert reader.tokens(longest) == (*range(700, 700 + 3 * BLOCK), *range(5, 5 + BLOCK))


def test_i12_quiet_nothing_leaves_for_namespaces_that_did_not_opt_in(tmp_path: Path) -> None:
    with exporting(tmp_path, slots=8) as (rig, wire):
        rig.serve(run_of(1000, 3 * BLOCK), namespace="secret", root=b"s" * 32)
        rig.serve(PROMPT)
        rig.serve(run_of(500, 4 * BLOCK))  # the others' blocks give way
        payloads = [payload for _, payload in wire.ask(0)] + [
            payload for _, payload in wire.ask(LISTING, meanwhile=rig.turn)
        ]
    for payload in payloads:
        for event in msgspec.msgpack.decode(payload)[1]:
            assert not set(event.get("token_ids", ())) & set(range(1000, 1100))


def test_i12_quiet_opting_out_takes_everything_back_and_opting_in_lists_what_is_there(tmp_path: Path) -> None:
    with exporting(tmp_path) as (rig, wire):
        reader = Reader()
        rig.serve(PROMPT)
        secret = rig.serve(run_of(1000, 2 * BLOCK), namespace="secret", root=b"s" * 32)
        list(wire.ask(0))  # the publisher has taken what there was
        rig.table = table(ns=False, secret=True)
        rig.turn()
        for _, payload in wire.ask(0):
            reader.take(payload)
        assert set(reader.held) == set(hashes(secret))


def test_the_live_stream_is_numbered_without_gaps(tmp_path: Path) -> None:
    with exporting(tmp_path) as (rig, wire):
        rig.turn()
        for start in itertools.count(0, 100):  # until the subscription has arrived
            rig.serve(run_of(start, BLOCK))
            if wire.live.poll(20):
                break
        number, _ = wire.receive()
        numbers = []
        for start in range(50_000, 50_500, 100):
            rig.serve(run_of(start, BLOCK))
        while len(numbers) < 5:
            numbers.append(wire.receive()[0])
        assert numbers == list(range(number + 1, number + 6))


def test_a_replay_begins_where_it_was_asked_to_or_openly_later(tmp_path: Path) -> None:
    with exporting(tmp_path) as (rig, wire):
        for start in range(0, 500, 100):
            rig.serve(run_of(start, BLOCK))
        assert [number for number, _ in wire.ask(2)] == [2, 3, 4]
        assert list(wire.ask(99)) == []
    history = History(max_batches=3)
    for number in range(10):
        history.add(number, b"x")
    assert [number for number, _ in history.since(2)] == [7, 8, 9]
    heavy = History(max_bytes=10)
    for number in range(10):
        heavy.add(number, b"x" * 4)
    assert [number for number, _ in heavy.since(0)] == [8, 9]


def test_a_listing_is_true_as_of_its_number_and_later_batches_go_on_top(tmp_path: Path) -> None:
    with exporting(tmp_path, slots=16) as (rig, wire):
        for start in range(0, 600, 100):
            rig.serve(run_of(start, 4 * BLOCK))
        reader = Reader()
        numbers = set()
        for number, payload in wire.ask(LISTING, meanwhile=rig.turn):
            numbers.add(number)
            reader.take(payload)
        assert set(reader.held) == set(hashes(rig.store.snapshot()))
        (number,) = numbers
        rig.serve(run_of(9000, 2 * BLOCK))
        for _, payload in wire.ask(number + 1):
            reader.take(payload)
        assert set(reader.held) == set(hashes(rig.store.snapshot()))


def test_rou_14_overflow_is_counted_and_readers_begin_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "MAX_ITEMS", 3)
    rig = Exporting(tmp_path, slots=16)
    for start in range(0, 3000, 100):  # the publisher does not run yet: ten times what the outbox holds
        rig.serve(run_of(start, 2 * BLOCK))
    assert rig.count("kvgrove_node_kv_events_dropped_total", kind="overflow") == 1
    with ExitStack() as ends:
        ends.callback(rig.export.close)
        wire = Wire(rig.export)
        ends.callback(wire.close)
        rig.export.start()
        reader = Reader()
        list(wire.ask(0))
        rig.turn()
        rig.turn()
        batches = list(wire.ask(0))
        kinds = [[event["type"] for event in reader.take(payload)] for _, payload in batches]
        assert kinds[-1][0] == "AllBlocksCleared"
        assert set(reader.held) == set(hashes(rig.store.snapshot()))


def test_blocks_that_went_before_they_were_told_are_not_told(tmp_path: Path) -> None:
    with exporting(tmp_path, slots=16) as (rig, wire):
        rig.turn()
        serve(rig.store, chain_of(rig.store, PROMPT))
        rig.store.drop(cause=RemovalCause.ERASE, namespace="ns")
        rig.turn()
        rig.serve(run_of(0, BLOCK))
        events = [event for _, payload in wire.ask(1) for event in msgspec.msgpack.decode(payload)[1]]
        assert [event["type"] for event in events] == ["BlockStored"]


@pytest.mark.parametrize("frames", [[b"x", b"12345678"], [b"", b"short"], [b""], [b"", b"12345678", b"more"]])
def test_iso_13_requests_that_are_none_are_counted_and_the_next_is_answered(
    tmp_path: Path, frames: list[bytes]
) -> None:
    with exporting(tmp_path) as (rig, wire):
        rig.turn()
        wire.replay.send_multipart(frames)
        assert [number for number, _ in wire.ask(0)] == [0]
        assert rig.count("kvgrove_node_kv_event_replays_total", outcome="malformed") == 1


@pytest.mark.parametrize(
    ("address", "stays"),
    [
        ("ipc:///run/kvgrove/events", True),
        ("tcp://127.0.0.1:5557", True),
        ("tcp://127.9.9.9:*", True),
        ("tcp://[::1]:5557", True),
        ("tcp://0.0.0.0:5557", False),
        ("tcp://*:5557", False),
        ("tcp://[::]:5557", False),
        ("tcp://10.0.0.7:5557", False),
        ("tcp://localhost:5557", False),
        ("tcp://127.0.0.1", False),
        ("inproc://events", False),
        ("pgm://127.0.0.1;239.0.0.1:5557", False),
    ],
)
def test_i12_quiet_token_ids_stay_on_this_machine_without_curve(address: str, stays: bool) -> None:
    assert stays_here(address) is stays
    if not stays:
        with pytest.raises(ExportRefused, match=r"--kv-events .*--kv-events-key") as refused:
            export_settings(address, None, None, None)
        assert refused.value.field == "--kv-events"
        with pytest.raises(ExportRefused, match="--kv-events-replay"):
            export_settings("ipc:///events", address, None, None)
    curve = export_settings(address, None, Path("key"), Path("clients"))
    assert curve is not None
    assert curve.curve == CurveFiles(Path("key"), Path("clients"))


def test_rou_09_a_tier_that_nobody_has_heard_of_does_not_end_the_publisher() -> None:
    media = [
        msgspec.msgpack.decode(Encoder(nearest).payload([Gone(tier, [b"k" * 32])], 0.0))[1][0]["medium"]
        for nearest, tier in [
            ("host", "host"),
            ("device", "device"),
            ("device", "host"),
            ("host", "disk"),
            ("host", "x"),
        ]
    ]
    assert media == ["GPU", "GPU", "CPU", "STORAGE", "STORAGE"]


def test_the_gauge_says_whether_the_publisher_runs(tmp_path: Path) -> None:
    with exporting(tmp_path) as (rig, _):
        assert rig.count("kvgrove_node_kv_events_up") == 1
    assert rig.count("kvgrove_node_kv_events_up") == 0


def test_settings_that_belong_together_come_together() -> None:
    assert export_settings(None, None, None, None) is None
    with pytest.raises(ExportRefused, match="--kv-events too"):
        export_settings(None, "ipc:///r", None, None)
    with pytest.raises(ExportRefused, match="both"):
        export_settings("ipc:///e", None, Path("key"), None)


def test_an_address_in_use_is_refused_by_its_option(tmp_path: Path) -> None:
    settings = ExportSettings(f"ipc://{tmp_path}/e", None, None)
    with readers() as context:
        held = context.socket(zmq.PUB)
        port = held.bind_to_random_port("tcp://127.0.0.1")
        with pytest.raises(ExportRefused, match=r"--kv-events-replay tcp://127\.0\.0\.1"):
            Exporting(tmp_path, settings=replace(settings, replay=f"tcp://127.0.0.1:{port}"))
    with exporting(tmp_path, settings=settings):  # what was bound before the refusal is free again
        pass


def test_under_curve_only_known_readers_are_let_in(tmp_path: Path) -> None:
    clients = tmp_path / "clients"
    clients.mkdir()
    server_public, server_secret = zmq.auth.create_certificates(tmp_path, "node")
    zmq.auth.create_certificates(tmp_path, "known")
    (tmp_path / "known.key").rename(clients / "known.key")
    files = CurveFiles(Path(server_secret), clients)
    settings = ExportSettings("tcp://127.0.0.1:*", "tcp://127.0.0.1:*", files)
    with exporting(tmp_path, settings=settings) as (rig, plain), readers() as context:
        rig.turn()
        address = rig.export.replay_address
        assert address is not None
        asked = {}
        for name in ("unknown", "known"):
            socket = context.socket(zmq.DEALER)
            if name == "known":
                socket.curve_publickey, secret = zmq.auth.load_certificate(tmp_path / "known.key_secret")
            else:
                socket.curve_publickey, secret = zmq.curve_keypair()
            assert secret is not None
            socket.curve_secretkey = secret
            socket.curve_serverkey, _ = zmq.auth.load_certificate(server_public)
            socket.connect(address)
            socket.send_multipart([b"", bytes(8)])
            asked[name] = socket
        plain.replay.send_multipart([b"", bytes(8)])
        assert asked["known"].poll(PATIENCE_MS)
        assert asked["known"].recv_multipart()[2] == bytes(8)
        assert not asked["unknown"].poll(300)
        assert not plain.replay.poll(300)


def test_under_curve_certificates_that_are_none_are_refused_by_their_option(tmp_path: Path) -> None:
    clients = tmp_path / "clients"
    clients.mkdir()
    server_public, server_secret = zmq.auth.create_certificates(tmp_path, "node")

    def refused(key: str, folder: Path, option: str) -> None:
        settings = ExportSettings("tcp://127.0.0.1:*", None, CurveFiles(Path(key), folder))
        with pytest.raises(ExportRefused, match=option):
            Exporting(tmp_path, settings=settings)

    refused(server_public, clients, "--kv-events-key")
    refused(server_secret, tmp_path / "none", "--kv-events-clients")
    (clients / "broken.key").write_text("no certificate")
    refused(server_secret, clients, "--kv-events-clients")


@contextmanager
def readers() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    """A context whose sockets end with the test, also where it fails."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        yield context
    finally:
        context.destroy(0)
