"""What a node must remember across boots: purge counters it saw, whose bytes it may hold, erasures it carried out, and
which boots there were.

Counters are written before the plan that raises them is acknowledged, so that no restart of node or control plane can
bring an older epoch back (I3). An erasure is written once everything of its subject has been wiped, so that one that is
not here must be carried out before anything of an earlier boot is used, and one that is here never takes what is new
data by then (I8). A damaged file is not guessed at: the node starts with empty tiers, so it holds nothing, and the
damage is reported. May be called from any thread.
"""

import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from kvgrove_protocol.errors import Terminal

_VERSION = 1
MAX_BOOTS = 16
"""Boots that are remembered; of older ones nobody lives."""


class _Stored(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    epochs: dict[str, int]
    erasures: dict[str, list[str]] = {}
    boots: list[str] = []


class MemoryFileDamaged(Terminal):
    code = "memory_file_damaged"


class MemoryFile:
    """Durable on return of each change; a change that changes nothing writes nothing."""

    def __init__(
        self,
        path: Path,
        epochs: Mapping[str, int] | None = None,
        erasures: Mapping[str, list[str]] | None = None,
        boots: Sequence[str] = (),
    ) -> None:
        self.path = path
        self._epochs = dict(epochs or {})
        self._erasures = {uid: frozenset(ids) for uid, ids in (erasures or {}).items()}
        self._boots = tuple(boots)
        self._lock = threading.Lock()

    @classmethod
    def load(cls, path: Path) -> "MemoryFile":
        """Raises MemoryFileDamaged if there is a file that is not ours; a missing one is a first boot."""
        try:
            stored = msgspec.json.decode(path.read_bytes(), type=_Stored)
        except FileNotFoundError:
            return cls(path)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise MemoryFileDamaged(
                f"{path}: {error}; move it away if this node's caches may start from nothing"
            ) from None
        if stored.version != _VERSION:
            raise MemoryFileDamaged(
                f"{path}: version {stored.version}, this release reads {_VERSION}: use the release that wrote it"
            )
        return cls(path, stored.epochs, stored.erasures, stored.boots)

    def begin(self, boot: str) -> frozenset[str]:
        """Remember ``boot``; the ones before it."""
        with self._lock:
            earlier = self._boots
            self._save(self._epochs, self._erasures, (*earlier, boot)[-MAX_BOOTS:])
            return frozenset(earlier)

    @property
    def epochs(self) -> Mapping[str, int]:
        """Namespace UID -> highest purge counter. A copy that does not change."""
        return self._epochs

    def raise_to(self, counters: Mapping[str, int]) -> None:
        """Remember higher counters."""
        with self._lock:
            epochs = dict(self._epochs)
            for uid, counter in counters.items():
                epochs[uid] = max(counter, epochs.get(uid, 0))
            self._save(epochs, self._erasures)

    def wiped(self, uid: str, erasure: str) -> bool:
        """Whether this erasure of part of ``uid`` was carried out, in whatever boot."""
        return erasure in self._erasures.get(uid, ())

    def note_wiped(self, uid: str, erasure: str) -> None:
        """Everything that this erasure means is gone."""
        with self._lock:
            done = self._erasures.get(uid, frozenset()) | {erasure}
            self._save(self._epochs, {**self._erasures, uid: done})

    def keep_wiped(self, asked: Mapping[str, frozenset[str]]) -> None:
        """Forget erasures that no plan asks for any more. ``asked``: namespace UID -> ids."""
        with self._lock:
            kept = {uid: ids & asked.get(uid, frozenset()) for uid, ids in self._erasures.items()}
            self._save(self._epochs, {uid: ids for uid, ids in kept.items() if ids})

    def forget(self, uid: str) -> None:
        """Nothing of this namespace is left here."""
        with self._lock:
            self._save(
                {known: counter for known, counter in self._epochs.items() if known != uid},
                {known: ids for known, ids in self._erasures.items() if known != uid},
            )

    def _save(
        self, epochs: dict[str, int], erasures: dict[str, frozenset[str]], boots: tuple[str, ...] | None = None
    ) -> None:
        boots = self._boots if boots is None else boots
        if (epochs, erasures, boots) == (self._epochs, self._erasures, self._boots):
            return
        stored = _Stored(_VERSION, epochs, {uid: sorted(ids) for uid, ids in erasures.items()}, [*boots])
        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft = self.path.with_suffix(".new")
        with draft.open("wb") as file:
            file.write(msgspec.json.encode(stored))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self.path)
        directory = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        self._epochs, self._erasures, self._boots = epochs, erasures, boots
