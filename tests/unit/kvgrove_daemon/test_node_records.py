"""Event log and memory file: numbered without gaps, durable, never guessed at."""

import json
from pathlib import Path

import pytest

from kvgrove_daemon.event_log import MAX_KEYS_PER_EVENT, EventLog
from kvgrove_daemon.memory_file import MAX_BOOTS, MemoryFile, MemoryFileDamaged
from kvgrove_protocol.events import SNAPSHOT_CHUNK_KEYS, NodeLoad, Removed, Stored, split_keys

LOAD = NodeLoad(0, 0, 0.0, 0.0, 1)


def key(number: int) -> bytes:
    return number.to_bytes(32, "big")


def test_batches_are_numbered_and_keep_the_order_of_changes() -> None:
    log = EventLog("boot")
    assert log.flush(LOAD) is None
    log.stored([key(1), key(2)])
    log.stored([key(3)])
    log.removed([key(2)])
    log.stored([key(2)])
    batch = log.flush(LOAD)
    assert batch is not None
    assert batch.seq == 0
    assert [(type(event), split_keys(event.keys)) for event in batch.events if not isinstance(event, str)] == [  # type: ignore[union-attr]
        (Stored, [key(1), key(2), key(3)]),
        (Removed, [key(2)]),
        (Stored, [key(2)]),
    ]
    heartbeat = log.flush(LOAD, heartbeat=True)
    assert heartbeat is not None
    assert (heartbeat.seq, heartbeat.events) == (1, [])


def test_an_event_is_bounded() -> None:
    log = EventLog("boot")
    for number in range(MAX_KEYS_PER_EVENT + 10):
        log.stored([key(number)])
    batch = log.flush(LOAD)
    assert batch is not None
    assert len(batch.events) == 2


def test_a_snapshot_is_true_up_to_the_last_flushed_batch() -> None:
    log = EventLog("boot")
    log.stored([key(1)])
    with pytest.raises(RuntimeError, match="flush"):
        log.snapshot({"host": [key(1)]})
    log.flush(LOAD)
    chunks = log.snapshot({"host": (key(number) for number in range(SNAPSHOT_CHUNK_KEYS + 1))})
    assert [(chunk.index, chunk.last, chunk.seq) for chunk in chunks] == [(0, False, 0), (1, True, 0)]
    empty = EventLog("boot").snapshot({})
    assert [(chunk.seq, chunk.keys, chunk.last) for chunk in empty] == [(-1, b"", True)]


def test_counters_survive_a_boot_and_never_fall(tmp_path: Path) -> None:
    path = tmp_path / "state" / "memory.json"
    memory = MemoryFile.load(path)
    memory.raise_to({"u": 3, "v": 1})
    memory.raise_to({"u": 2})
    assert MemoryFile.load(path).epochs == {"u": 3, "v": 1}
    memory.forget("v")
    assert MemoryFile.load(path).epochs == {"u": 3}


def test_i8_an_erasure_that_was_carried_out_is_remembered_while_it_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "memory.json"
    memory = MemoryFile.load(path)
    memory.note_wiped("u", "e1")
    memory.note_wiped("u", "e2")
    memory.note_wiped("v", "e3")
    again = MemoryFile.load(path)
    assert again.wiped("u", "e1")
    assert not again.wiped("v", "e1")
    again.keep_wiped({"u": frozenset({"e2", "e9"})})
    last = MemoryFile.load(path)
    assert [last.wiped(uid, each) for uid, each in (("u", "e1"), ("u", "e2"), ("v", "e3"))] == [False, True, False]
    last.forget("u")
    assert not MemoryFile.load(path).wiped("u", "e2")


def test_the_boots_of_a_node_are_remembered_up_to_a_bound(tmp_path: Path) -> None:
    path = tmp_path / "memory.json"
    assert MemoryFile.load(path).begin("a0") == set()
    assert MemoryFile.load(path).begin("a1") == {"a0"}
    for number in range(2, 40):
        memory = MemoryFile.load(path)
        memory.begin(f"a{number}")
    assert MemoryFile.load(path).begin("b") == {f"a{number}" for number in range(40 - MAX_BOOTS, 40)}


def test_a_file_of_the_release_before_is_read(tmp_path: Path) -> None:
    path = tmp_path / "memory.json"
    path.write_bytes(b'{"version": 1, "epochs": {"u": 3}}')
    assert MemoryFile.load(path).epochs == {"u": 3}


@pytest.mark.parametrize("content", [b"", b"{", json.dumps({"version": 1}).encode(), b'{"version": 2, "epochs": {}}'])
def test_a_damaged_or_newer_file_is_reported_not_replaced(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "memory.json"
    path.write_bytes(content)
    with pytest.raises(MemoryFileDamaged, match=r"memory\.json"):
        MemoryFile.load(path)
    assert path.read_bytes() == content
