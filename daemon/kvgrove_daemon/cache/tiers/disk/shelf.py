"""What the parts of one disk medium have in common.

Role: the pieces that reading, writing, erasing and rewrapping share, and the two steps that all of them take when an
extent must not be used any more. Must not know: the order of any of these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from kvgrove_daemon.cache.tiers.disk.causes import Cause
from kvgrove_daemon.cache.tiers.disk.extent import Header, facts_bytes
from kvgrove_daemon.cache.tiers.disk.files import ExtentFiles
from kvgrove_daemon.cache.tiers.disk.keyring import Keyring
from kvgrove_daemon.cache.tiers.disk.sealing import Entropy
from kvgrove_daemon.cache.tiers.disk.set_aside import SetAside
from kvgrove_daemon.cache.tiers.disk.table import Extent, ExtentTable
from kvgrove_protocol.chain import TOKEN_BYTES


class BlockShape(NamedTuple):
    """What every block of a directory is like."""

    layout: bytes
    """`LayoutFingerprint.digest`."""
    block_size: int
    """In tokens."""
    block_bytes: int

    @property
    def token_bytes(self) -> int:
        return self.block_size * TOKEN_BYTES

    def header(self, extent: bytes, namespace: str, depth: int) -> Header:
        return Header(extent, self.layout, namespace, depth, facts_bytes(self.token_bytes), self.block_bytes)

    @property
    def file_bytes(self) -> int:
        return self.header(b"", "", 0).file_bytes


@dataclass(frozen=True, slots=True)
class Shelf:
    """One directory and all that is known of it."""

    files: ExtentFiles
    set_aside: SetAside
    table: ExtentTable
    keyring: Keyring
    shape: BlockShape
    entropy: Entropy
    wall_clock: Callable[[], float]
    """Seconds since 1970."""
    left: set[Path] = field(default_factory=set)
    """Files of failed writes that the system would not remove: nobody's, and in no count of slots. They go before
    anything else is written, or with the next slots that are erased."""

    def condemn(self, slots: Sequence[int]) -> list[tuple[int, Extent]]:
        """What these slots hold, never to be read again; nothing reads or rewraps it any more on return."""
        held = [(slot, extent) for slot in slots if (extent := self.table.held.get(slot)) is not None]
        for _, extent in held:
            with extent.lock:
                extent.dead = True
        return held

    def spoil(self, slot: int, extent: Extent, cause: Cause) -> None:
        """The file in ``slot`` is bad: out of the way, and the slot is empty."""
        self.table.drop(slot, extent)
        self.table.count(cause)
        self.set_aside.put(self.files.path(extent.header.extent), cause)
