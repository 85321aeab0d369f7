"""Which of the extents that wait may become resident again.

Role: open the sealed facts of one namespace's waiting extents, once its current roots and secret are known from a plan
under a fresh lease, and answer those that are right. Invariants: of this layout, under a known secret, of one of the
given roots, each with its parent before it (I6), no block twice; payloads are not read, they prove themselves when they
are. All else keeps its cause and waits to be discarded. Must not know: slots, leases, where roots come from.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from kvgrove_daemon.cache.tiers.disk import sealing
from kvgrove_daemon.cache.tiers.disk.causes import BadExtent, Cause
from kvgrove_daemon.cache.tiers.disk.extent import FACTS_AT, KEY_PAGES, PAGE, decode_facts
from kvgrove_daemon.cache.tiers.disk.sealing import Secret
from kvgrove_daemon.cache.tiers.disk.shelf import Shelf
from kvgrove_daemon.cache.tiers.disk.table import Extent
from kvgrove_daemon.cache.tiers.medium import Facts


@dataclass(frozen=True, slots=True)
class Survivor:
    """A block that may be adopted."""

    facts: Facts
    written_at: float
    """Seconds since 1970, by the clock of the node that wrote it; the block was computed before."""
    extent: Extent


@dataclass(frozen=True, slots=True)
class Surveyed:
    """``survivors``: parents before their children. ``others``: with the cause for which each is none."""

    survivors: list[Survivor]
    others: list[tuple[Extent, Cause]]


_Place = tuple[bytes, bytes]
"""Root and key of a block."""


def survey(shelf: Shelf, namespace: str, roots: Collection[bytes]) -> Surveyed:
    """Reads the facts of each extent of ``namespace`` that waits. Raises SecretUnknown."""
    openers = shelf.keyring.of(namespace).openers
    opened: list[Survivor] = []
    others: list[tuple[Extent, Cause]] = []
    for extent in shelf.table.waiting_of(namespace):
        try:
            opened.append(_open(shelf, extent, openers, roots))
        except BadExtent as bad:
            others.append((extent, bad.cause))
        except OSError:
            others.append((extent, Cause.UNREADABLE))
    opened.sort(key=lambda survivor: survivor.facts.depth)
    held = shelf.table.held_of(namespace)
    depths: dict[_Place, int] = {(extent.root, extent.key): extent.header.depth for _, extent in held}
    survivors: list[Survivor] = []
    for survivor in opened:
        facts = survivor.facts
        if (facts.root, facts.key) in depths:
            others.append((survivor.extent, Cause.DUPLICATE))
        elif not _is_rooted(facts, depths):
            others.append((survivor.extent, Cause.ORPHAN))
        else:
            depths[facts.root, facts.key] = facts.depth
            survivors.append(survivor)
    return Surveyed(survivors, others)


def _is_rooted(facts: Facts, depths: dict[_Place, int]) -> bool:
    if facts.depth == 0:
        return facts.parent == facts.root
    return depths.get((facts.root, facts.parent)) == facts.depth - 1


def _open(shelf: Shelf, extent: Extent, openers: Collection[Secret], roots: Collection[bytes]) -> Survivor:
    """Raises BadExtent or OSError."""
    header = extent.header
    if header.layout != shelf.shape.layout or header.body_bytes != shelf.shape.block_bytes:
        raise BadExtent(Cause.LAYOUT)
    head = bytearray(header.body_at)
    shelf.files.read(header, memoryview(head))
    facts, written_at = decode_facts(header, open_facts(bytes(head), openers)[1])
    if len(facts.tokens) != shelf.shape.token_bytes:
        raise BadExtent(Cause.LAYOUT)
    if facts.root not in roots:
        raise BadExtent(Cause.ROOT)
    return Survivor(facts, written_at, extent)


def open_facts(head: bytes, openers: Collection[Secret]) -> tuple[bytes, bytes]:
    """Data key and facts of an extent, from all of it before the body. Raises BadExtent."""
    page = head[:PAGE]
    data_key = open_key([head[at : at + PAGE] for at in KEY_PAGES], page, openers)
    return data_key, sealing.open_facts(data_key, memoryview(head)[FACTS_AT:], page)


def open_key(pages: Collection[bytes], header: bytes, openers: Collection[Secret]) -> bytes:
    """The data key by whichever page one of ``openers`` opens. Raises BadExtent: corrupt, or of another secret."""
    names = {name: page for page in pages if (name := sealing.wrapped_by(page)) is not None}
    for secret in openers:
        if secret.name in names:
            return sealing.unwrap(names[secret.name], secret, header)
    raise BadExtent(Cause.SECRET if names else Cause.CORRUPT)
