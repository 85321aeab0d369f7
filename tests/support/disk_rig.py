"""A small disk medium, and chains of blocks to put into it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from kvgrove_daemon.cache.tiers.disk import DiskMedium, Filesystem
from kvgrove_daemon.cache.tiers.disk.shelf import BlockShape
from kvgrove_daemon.cache.tiers.medium import Facts
from kvgrove_protocol.chain import block_keys
from kvgrove_protocol.identity import Contributor, LayoutFingerprint

BLOCK_SIZE = 8
BLOCK_BYTES = 6000
LAYOUT = LayoutFingerprint(
    abi="kvgrove/layer-major/1", num_layers=2, num_kv_heads=2, head_dim=8, dtype="float32", block_size=BLOCK_SIZE
)
FILE_BYTES = BlockShape(LAYOUT.digest(), BLOCK_SIZE, BLOCK_BYTES).file_bytes
UID, OTHER_UID = "6f1d-uid-of-one", "77aa-uid-of-another"
ROOT, OTHER_ROOT = b"r" * 32, b"q" * 32
SECRET, NEXT_SECRET = b"first secret of the namespace 32", b"other secret of the namespace 32"
ALICE = Contributor(b"t" * 16, b"alice's pseudonym"[:16])


def open_disk(
    directory: Path,
    *,
    slots: int = 16,
    filesystem: Filesystem | None = None,
    layout: LayoutFingerprint = LAYOUT,
    **options: Any,
) -> DiskMedium:
    return DiskMedium.open(
        directory,
        layout=layout.digest(),
        block_size=BLOCK_SIZE,
        block_bytes=BLOCK_BYTES,
        capacity_bytes=slots * FILE_BYTES,
        filesystem=filesystem,
        **options,
    )


def chain(length: int, *, seed: int = 0, root: bytes = ROOT, namespace: str = UID) -> list[Facts]:
    """Facts of the first ``length`` blocks of a prompt."""
    words = np.random.default_rng(seed).integers(0, 2**31, length * BLOCK_SIZE, dtype="<u4").tobytes()
    fold = hashlib.sha256(b"private realm").digest()
    keys = block_keys(root, words, {0: fold}, block_size=BLOCK_SIZE)
    return [
        Facts(
            namespace=namespace,
            root=root,
            key=key,
            parent=keys[at - 1] if at else root,
            depth=at,
            tokens=words[at * BLOCK_SIZE * 4 : (at + 1) * BLOCK_SIZE * 4],
            fold=b"" if at else fold,
            documents=() if at else ("handbook",),
            contributors=(ALICE,),
        )
        for at, key in enumerate(keys)
    ]


def body_of(facts: Facts) -> bytes:
    """The KV of a block: different for each, and known."""
    return np.random.default_rng(int.from_bytes(facts.key[:8], "little")).bytes(BLOCK_BYTES)


def adopt_all(disk: DiskMedium, roots: tuple[bytes, ...] = (ROOT,), namespace: str = UID) -> dict[int, Facts]:
    """Slot -> facts of all that can be adopted, in slots from 0 on; the rest is discarded."""
    adopted = {}
    for slot, survivor in enumerate(disk.survey(namespace, roots)):
        assert disk.adopt(slot, survivor)
        adopted[slot] = survivor.facts
    disk.discard(namespace)
    return adopted


def files_in(directory: Path) -> list[Path]:
    """Everything but the lock file and empty folders."""
    return sorted(path for path in directory.rglob("*") if path.is_file() and path.name != "lock")


def damage(extent: Path) -> None:
    """Its last byte becomes another one, whatever it was."""
    *kept, last = extent.read_bytes()
    extent.write_bytes(bytes([*kept, last ^ 1]))


def extents_in(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.extent"))
