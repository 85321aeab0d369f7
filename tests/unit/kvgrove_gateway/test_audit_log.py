"""The audit log: what a line is, what happens when the disk is full, the line is full, the file is moved away."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from gateway_rig import wait_until
from prometheus_client import CollectorRegistry

from kvgrove_gateway.protection.audit import AuditLog, Unwritable
from kvgrove_gateway.protection.figures import ProtectionFigures


class Desk:
    def __init__(self, path: Path, **more: Any) -> None:
        self.registry = CollectorRegistry()
        self.log = AuditLog(
            path, member="g", now=lambda: 1_800_000_000.25, figures=ProtectionFigures(self.registry), **more
        )

    def lost(self, reason: str) -> float:
        return self.registry.get_sample_value("kvgrove_gateway_audit_lost_total", {"reason": reason}) or 0.0

    def written(self) -> float:
        return self.registry.get_sample_value("kvgrove_gateway_audit_written_total") or 0.0


@contextmanager
def desk(path: Path, **more: Any) -> Iterator[Desk]:
    opened = Desk(path, **more)
    try:
        yield opened
    finally:
        opened.log.close()


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_a_record_is_one_line_of_json_whatever_is_in_it(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with desk(path) as opened:
        opened.log.record("request", user='a"\n{"event":"forged"}\u2028', status=200, namespace=None)
    (record,) = lines(path)
    assert record == {
        "time": "2027-01-15T08:00:00.250Z",
        "member": "g",
        "seq": 1,
        "event": "request",
        "user": 'a"\n{"event":"forged"}\u2028',
        "status": 200,
    }
    assert path.stat().st_mode & 0o777 == 0o600


def test_it_appends_and_numbers_follow_each_other(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    for _ in range(2):
        with desk(path) as opened:
            threads = [
                threading.Thread(target=lambda: [opened.log.record("request") for _ in range(100)]) for _ in range(4)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    assert [each["seq"] for each in lines(path)] == [*range(1, 401), *range(1, 401)]


def test_after_a_rotation_it_writes_to_a_new_file(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with desk(path) as opened:
        opened.log.record("request", n=1)
        wait_until(lambda: opened.written() == 1, "the first is written")
        path.rename(tmp_path / "old.jsonl")
        opened.log.record("request", n=2)
        wait_until(lambda: opened.written() == 2, "the second is written")
        opened.log.reopen()
        opened.log.record("request", n=3)
    assert [each["n"] for each in lines(tmp_path / "old.jsonl")] == [1, 2]
    assert [each["n"] for each in lines(path)] == [3]


def test_a_rotation_that_fails_goes_on_with_the_old_file_until_it_works(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    path = folder / "audit.jsonl"
    with desk(path) as opened:
        folder.rename(tmp_path / "moved")
        opened.log.reopen()
        opened.log.record("request", n=1)
        wait_until(lambda: opened.written() == 1, "it is written somewhere")
        folder.mkdir()
        opened.log.record("request", n=2)
    assert [each["n"] for each in lines(tmp_path / "moved" / "audit.jsonl")] == [1]
    assert [each["n"] for each in lines(path)] == [2]


def test_i7_best_effort_a_full_disk_is_counted_told_in_the_file_and_fails_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A real full device, and then room again; the line that broke off half way spoils no other."""
    path = tmp_path / "audit.jsonl"
    with desk(path) as opened:
        opened.log.record("request", n=0)
        wait_until(lambda: opened.written() == 1, "the first is written")
        handle = opened.log._handle
        before = os.dup(handle)
        os.write(before, b'{"half of a li')  # what a disk that fills up leaves
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, handle)
        opened.log._torn = True
        for n in range(1, 6):
            opened.log.record("request", n=n)
        wait_until(lambda: opened.lost("write_failed") == 5, "five are lost")
        os.dup2(before, handle)
        os.close(before)
        os.close(full)
        opened.log.record("request", n=6)
    whole = path.read_bytes().split(b"\n")
    assert whole[1] == b'{"half of a li'
    assert [json.loads(line).get("n", json.loads(line)["event"]) for line in (whole[0], *whole[2:-1])] == [0, "lost", 6]
    assert json.loads(whole[2])["count"] == 5
    assert json.loads(whole[3])["seq"] == 7
    assert caplog.text.count("is not written") == 1


def test_i11_bounded_when_the_line_is_full_records_are_lost_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "audit.jsonl"
    gate, entered = threading.Event(), threading.Event()
    write = os.write

    def slow(handle: int, content: bytes) -> int:
        entered.set()
        gate.wait(60)
        return write(handle, content)

    with desk(path, max_waiting=4) as opened:
        monkeypatch.setattr(os, "write", slow)
        opened.log.record("request", n=0)
        assert entered.wait(60)  # the writer is on the disk with the first
        for n in range(1, 11):
            opened.log.record("request", n=n)
        assert opened.lost("queue_full") == 6
        gate.set()
        wait_until(lambda: opened.written() == 5, "the others are written")
        monkeypatch.undo()
    found = lines(path)
    assert [each["n"] for each in found if each["event"] == "request"] == [0, 1, 2, 3, 4]
    assert [each["count"] for each in found if each["event"] == "lost"] == [6]


def test_it_may_go_to_standard_output(capfd: pytest.CaptureFixture[str]) -> None:
    with desk(Path("-")) as opened:
        opened.log.record("request", n=1)
        opened.log.reopen()
        opened.log.record("request", n=2)
    assert [json.loads(line)["n"] for line in capfd.readouterr().out.splitlines()] == [1, 2]


def test_a_place_that_cannot_be_written_is_said_at_start(tmp_path: Path) -> None:
    with pytest.raises(Unwritable, match=r"--audit-log .*nowhere.*: No such file"):
        Desk(tmp_path / "nowhere" / "audit.jsonl")
