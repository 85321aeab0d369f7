"""The state directory of one fleet: its lock, its layout, and the facts that must outlive the supervisor.

Facts are durable before anyone is told of them: a term before the first plan of that term, a plan's epochs before the
plan, a member before its first lease (DESIGN section 7). Two supervisors never share a directory. Everything in it is
readable by its owner only: it holds the namespaces' secrets.
"""

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from kvgrove_cli.durable import DurableFile
from kvgrove_cli.errors import FleetProblem
from kvgrove_operator.member_events import MemberRecord
from kvgrove_operator.plan_state import PlanState

_VERSION = 1


class FleetState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    term: int = 0
    """Raised at each start, so that plans of an earlier supervisor are older whatever their number."""
    uids: dict[str, str] = {}
    """``<k8s namespace>/<name>`` -> UID of the PromptCacheNamespace that bears the name now."""
    plan: PlanState = PlanState()
    members: dict[str, list[MemberRecord]] = {}
    """Member -> what it may hold a lease on (I3)."""


def default_path(environment: Mapping[str, str]) -> Path:
    """Where a fleet keeps its state unless told otherwise (XDG base directories)."""
    base = environment.get("XDG_STATE_HOME") or Path(environment.get("HOME", "/")) / ".local" / "state"
    return Path(base) / "kvgrove" / "default"


class StateDir:
    """A context manager that holds the directory's lock. Raises FleetProblem where it cannot be had."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None
        self._file = DurableFile(
            path / "state.json",
            FleetState,
            name="kvgrove-state",
            version=_VERSION,
            cure="move it away to start afresh (namespaces get new identities, nothing cached before is reused)",
        )

    @property
    def status_file(self) -> Path:
        return self.path / "status.json"

    @property
    def keys_file(self) -> Path:
        return self.path / "keys.yaml"

    @property
    def development_key_file(self) -> Path:
        return self.path / "development-key"

    @property
    def link_keys(self) -> Path:
        """Folder of the fleet's link keys: one folder in it for each role."""
        return self.path / "link-keys"

    def log_file(self, member: str) -> Path:
        return self.path / "logs" / f"{member}.log"

    def audit_file(self, member: str) -> Path:
        """Of a gateway."""
        return self.path / "logs" / f"{member}.audit.jsonl"

    def member_dir(self, member: str) -> Path:
        """A member's own directory, made if missing."""
        return _private(_private(self.path / "members") / member)

    def __enter__(self) -> Self:
        _private(self.path)
        try:
            handle = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._unusable(error) from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(handle, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(handle)
            raise FleetProblem(
                f"{self.path} is in use by process {holder}: stop that fleet, or choose another --state-dir",
                code="state_in_use",
            ) from None
        try:
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            os.close(handle)
            raise self._unusable(error) from None
        self._lock = handle
        return self

    def _unusable(self, error: OSError) -> FleetProblem:
        return FleetProblem(
            f"{self.path}: {error.strerror}; make room or allow writing there, or choose another --state-dir",
            code="state_unwritable",
        )

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._lock is not None:
            os.ftruncate(self._lock, 0)
            os.close(self._lock)
            self._lock = None

    def in_use(self) -> bool:
        """Whether a fleet runs on this directory now."""
        try:
            handle = os.open(self.path / "lock", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
        return False

    def load(self) -> FleetState:
        """The stored facts; those of a new fleet where there are none. Raises FleetProblem for a damaged file."""
        return self._file.load() or FleetState()

    def save(self, state: FleetState) -> None:
        """Durable on return. Only under the lock."""
        if self._lock is None:
            raise FleetProblem(f"{self.path}: its lock is not held", code="state_unlocked")
        self._file.save(state)


def _private(path: Path) -> Path:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise FleetProblem(f"{path}: {error.strerror}; choose another --state-dir") from None
    return path
