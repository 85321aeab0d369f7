"""What a node must remember across boots: the highest purge counters it saw, and whose bytes it may still hold.

Written before the plan that raises a counter is acknowledged, so that no restart of node or control plane can bring an
older epoch back (I3). A damaged file is not guessed at: the node starts with empty tiers, so it holds nothing, and the
damage is reported.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from kvgrove_protocol.errors import Terminal


class _Stored(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    epochs: dict[str, int]


class MemoryFileDamaged(Terminal):
    code = "memory_file_damaged"


@dataclass
class MemoryFile:
    """Namespace UID -> highest purge counter, durable."""

    path: Path
    epochs: dict[str, int] = field(default_factory=dict)

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
        if stored.version != 1:
            raise MemoryFileDamaged(
                f"{path}: version {stored.version}, this release reads 1: use the release that wrote it"
            )
        return cls(path, stored.epochs)

    def raise_to(self, counters: Mapping[str, int], *, forget: frozenset[str] = frozenset()) -> None:
        """Remember higher counters, and drop ``forget``. Durable on return; does nothing if nothing changes."""
        merged = {uid: counter for uid, counter in self.epochs.items() if uid not in forget}
        for uid, counter in counters.items():
            merged[uid] = max(counter, merged.get(uid, 0))
        if merged == self.epochs:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft = self.path.with_suffix(".new")
        with draft.open("wb") as file:
            file.write(msgspec.json.encode(_Stored(1, merged)))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self.path)
        directory = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        self.epochs = merged
