"""The audit log: one JSON object a line, appended; who used which credential for what, and what was refused.

Never on the way of a request (I7): records go into a bounded line and a thread writes them. Where the line is full or
the disk does not take them, records are lost, counted (``kvgrove_gateway_audit_lost``), and the file itself says so as
soon as it can be written: ``{"event": "lost", "count": n}`` stands where they are missing. ``seq`` counts records from
1 since the process began, lost ones included, so a gap shows even where that line is missing too.

No prompt text, no keys, no tokens (I12): whoever records passes names of credentials and closed words only.
"""

import json
import logging
import os
import queue
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol, TypeAlias

from kvgrove_gateway.protection.figures import ProtectionFigures
from kvgrove_protocol.errors import Terminal

log = logging.getLogger(__name__)

MAX_WAITING = 8192
"""Records that wait to be written: more are lost, and counted."""
BATCH = 512
STDOUT = Path("-")
"""In place of a path: standard output, for whoever collects it; the process says nothing else there."""

Value: TypeAlias = str | int | list[str] | None


class Unwritable(Terminal):
    """The audit log cannot be opened at start."""

    code = "audit_log_unwritable"


class Audit(Protocol):
    """Where records go."""

    def record(self, event: str, **fields: Value) -> None:
        """Note what happened. Neither blocks nor raises."""


class NoAudit:
    """No log was asked for."""

    def record(self, event: str, **fields: Value) -> None:
        pass


class AuditLog:
    """Appends to ``path``. `record` and `reopen` from any thread; `close` once."""

    def __init__(
        self,
        path: Path,
        *,
        member: str,
        now: Callable[[], float],
        figures: ProtectionFigures,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        """Raises Unwritable. ``path``: a file, or `STDOUT`. ``member``: this gateway's name, in every record. ``now``:
        seconds since 1970."""
        self._path = path
        self._member = member
        self._now = now
        self._figures = figures
        self._waiting: queue.Queue[bytes | None] = queue.Queue(max_waiting)
        self._sequence = 0
        self._lock = threading.Lock()
        self._lost = 0
        self._torn = False
        self._reopen = threading.Event()
        self._told = False
        try:
            self._handle = _open(path)
        except OSError as error:
            raise Unwritable(f"--audit-log {path}: {error.strerror}: name a file in a writable folder") from None
        self._thread = threading.Thread(target=self._write_all, name="audit log", daemon=True)
        self._thread.start()

    def record(self, event: str, **fields: Value) -> None:
        with self._lock:
            self._sequence += 1
            line = self._line(self._sequence, event, fields)
            try:
                self._waiting.put_nowait(line)
            except queue.Full:
                self._lose(1, "queue_full")

    def reopen(self) -> None:
        """Write to ``path`` anew from the next record on: the file has been moved away (logrotate)."""
        self._reopen.set()

    def close(self, timeout_s: float = 5.0) -> None:
        """Write what waits, for at most ``timeout_s``."""
        try:
            self._waiting.put(None, timeout=timeout_s)
        except queue.Full:
            return
        self._thread.join(timeout_s)

    def _line(self, sequence: int, event: str, fields: dict[str, Value]) -> bytes:
        time = datetime.fromtimestamp(self._now(), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        record = {"time": time, "member": self._member, "seq": sequence, "event": event}
        record |= {name: value for name, value in fields.items() if value is not None}
        return json.dumps(record, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"

    def _lose(self, count: int, reason: str) -> None:
        self._lost += count
        self._figures.audit_lost.labels(reason).inc(count)

    # -- in the thread -------------------------------------------------------------------------------------------------

    def _write_all(self) -> None:
        ended = False
        while not ended:
            batch = [self._waiting.get()]
            while len(batch) < BATCH and not self._waiting.empty():
                batch.append(self._waiting.get_nowait())
            ended = None in batch
            self._write([line for line in batch if line is not None])
        os.close(self._handle)

    def _write(self, lines: list[bytes]) -> None:
        if self._reopen.is_set():
            self._open_anew()
        with self._lock:
            lost, sequence = self._lost, self._sequence
        notice = [self._line(sequence, "lost", {"count": lost})] if lost else []
        if not lines and not notice:
            return
        try:
            self._append((b"\n" if self._torn else b"") + b"".join(notice + lines))
        except OSError as error:
            with self._lock:
                self._lose(len(lines), "write_failed")
            if not self._told:  # once, not for every record of an outage
                log.error("audit log %s is not written: %s; requests go on", self._path, error.strerror)
            self._told = True
            return
        with self._lock:
            self._lost -= lost
        self._torn = self._told = False
        self._figures.audit_written.inc(len(lines))

    def _append(self, content: bytes) -> None:
        """All of it, or OSError; what was written of it then ends in the middle of a line."""
        while content:
            written = os.write(self._handle, content)
            content = content[written:]
            self._torn = self._torn or bool(content)

    def _open_anew(self) -> None:
        try:
            handle = _open(self._path)
        except OSError as error:  # the old file takes the records until this one can be had
            log.error("audit log %s cannot be opened anew: %s", self._path, error.strerror)
            return
        self._reopen.clear()
        os.close(self._handle)
        self._handle, self._torn = handle, False


def _open(path: Path) -> int:
    if path == STDOUT:
        return os.dup(1)
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
