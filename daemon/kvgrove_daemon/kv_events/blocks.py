"""What is told of blocks, and how it is read off the cache's index. Core thread only.

Notes hold bytes as the index has them: turning them into numbers and messages is the publisher's work, in its thread.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from kvgrove_daemon.cache.index import BlockIndex
from kvgrove_daemon.cache.interned import NOTHING
from kvgrove_daemon.cache.leases import NO_BLOCK

MAX_BLOCKS_PER_NOTE = 256


@dataclass(slots=True)
class Listed:
    """Blocks that are READY on ``tier``, each the parent of the next."""

    tier: str
    block_size: int
    parent: bytes | None
    """Key of the block before the first; None where that one begins a prompt."""
    keys: list[bytes] = field(default_factory=list)
    tokens: list[bytes] = field(default_factory=list)
    """Little-endian uint32, by block."""
    folds: list[bytes] = field(default_factory=list)
    """By block; empty where only tokens matter."""


@dataclass(slots=True)
class Gone:
    """Blocks that are no longer on ``tier``."""

    tier: str
    keys: Sequence[bytes]


@dataclass(slots=True)
class Cleared:
    """Forget everything: what still is there follows."""


Note = Listed | Gone | Cleared


def blocks_of(note: Note) -> int:
    return 0 if isinstance(note, Cleared) else len(note.keys)


def listed(index: BlockIndex, ids: Iterable[int], tier: str) -> Iterator[Listed]:
    """``ids``: READY blocks of ``index``. Neighbours in a chain that follow each other share a note."""
    note: Listed | None = None
    last = NO_BLOCK
    for block in ids:
        parent = index.parent[block]
        if note is None or parent != last or parent == NO_BLOCK or len(note.keys) >= MAX_BLOCKS_PER_NOTE:
            if note is not None:
                yield note
            before = index.key(parent) if parent != NO_BLOCK else None
            note = Listed(tier, index.block_size, before)
        note.keys.append(index.key(block))
        note.tokens.append(index.tokens(block))
        fold = index.fold[block]
        note.folds.append(index.folds.value(fold) if fold != NOTHING else b"")
        last = block
    if note is not None:
        yield note


def in_chains(index: BlockIndex) -> list[int]:
    """All READY blocks: pieces of chains in one go where their ids follow each other, parents before children."""
    ids = sorted(index.ready_ids().tolist())
    runs: list[list[int]] = []
    for block in ids:
        if runs and runs[-1][-1] == block - 1 == index.parent[block]:
            runs[-1].append(block)
        else:
            runs.append([block])
    # A run whose first block is deeper comes later: the parent of a run's first block lies in a run that starts higher.
    runs.sort(key=lambda run: index.depth[run[0]])
    return [block for run in runs for block in run]
