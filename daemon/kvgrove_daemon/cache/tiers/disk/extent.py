"""What one file of the disk tier looks like.

Role: the format, as pure functions over bytes. All integers are little endian; a page is 4096 bytes, the largest unit
that devices in use write in one piece, so that rewriting one key page cannot tear its neighbours.

=====================  ==================================================================================
page 0: header         magic, version, sizes, depth, extent id, layout fingerprint, namespace UID, SHA-256
pages 1 and 2: keys    the data key, wrapped by the namespace's secret; one of the two is empty but while a
                       new secret is put into force (`rewrap`)
facts                  `Facts` sealed under the data key, padded so that its length tells nothing
body                   the block's KV sealed under the data key, to the end of the file
=====================  ==================================================================================

The header is in the clear: without any secret it must tell whose extent this is (so that it can be erased), and that it
is not of this layout (COR-09, COR-10). What would tell anything of the text (tokens, and key, parent and root, by which
a guess of the text could be confirmed) lies in the sealed facts. Both seals and the wrap are bound to the whole header,
the body's also to realm, key, tokens and fold: no byte can be changed, and no part moved to another file, unnoticed.

Invariants: parsing never trusts a length; whatever is off raises `BadExtent` with its cause. Must not know: files.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import Final

import msgspec

from kvgrove_daemon.cache.tiers.disk.causes import BadExtent, Cause
from kvgrove_daemon.cache.tiers.disk.sealing import TAG_BYTES
from kvgrove_daemon.cache.tiers.medium import Facts, MediumFailed
from kvgrove_protocol.canonical import digest
from kvgrove_protocol.identity import DIGEST_BYTES, Contributor

PAGE: Final = 4096
VERSION: Final = 1
EXTENT_ID_BYTES: Final = 16
KEY_PAGES: Final = (PAGE, 2 * PAGE)
"""Offsets of the two key pages."""
FACTS_AT: Final = 3 * PAGE
ERASED: Final = bytes(PAGE)
"""A header page that an erase has begun with: the rest of the file is to go too."""

_MAGIC: Final = b"kvgrove\x00"
_VERSIONED: Final = struct.Struct("<8sI")
_HEADER: Final = struct.Struct(f"<8sIIQI{EXTENT_ID_BYTES}s{DIGEST_BYTES}sH")
_CHECK_BYTES: Final = 32
_MOST_UID_BYTES: Final = 1024
_FACTS_LENGTH: Final = struct.Struct("<I")
_ROOM_FOR_LABELS: Final = 3 * 1024
"""Of documents and contributors of one block, beside its tokens."""


@dataclass(frozen=True, slots=True)
class Header:
    """What an extent tells without a secret."""

    extent: bytes
    """16 random bytes; also the file's name."""
    layout: bytes
    """`LayoutFingerprint.digest`."""
    namespace: str
    depth: int
    facts_bytes: int
    """Sealed; a multiple of a page."""
    body_bytes: int
    """Before sealing."""

    @property
    def body_at(self) -> int:
        return FACTS_AT + self.facts_bytes

    @property
    def file_bytes(self) -> int:
        return self.body_at + self.body_bytes + TAG_BYTES

    def encode(self) -> bytes:
        """One page. Raises MediumFailed for a UID that no API server would have made."""
        uid = self.namespace.encode()
        if len(uid) > _MOST_UID_BYTES:
            raise MediumFailed(f"namespace: its UID has {len(uid)} bytes, at most {_MOST_UID_BYTES} fit a header")
        fields = _HEADER.pack(
            _MAGIC, VERSION, self.facts_bytes, self.body_bytes, self.depth, self.extent, self.layout, len(uid)
        )
        page = (fields + uid).ljust(PAGE - _CHECK_BYTES, b"\0")
        return page + hashlib.sha256(page).digest()


def parse(page: bytes) -> Header:
    """The header in the first page of a file. Raises BadExtent."""
    if page[: len(_MAGIC)] != _MAGIC:
        raise BadExtent(Cause.HALF_ERASED if page == ERASED else Cause.FOREIGN)
    if len(page) < PAGE:
        raise BadExtent(Cause.TRUNCATED)
    # Before the checksum: a later version may keep it elsewhere.
    if _VERSIONED.unpack_from(page)[1] > VERSION:
        raise BadExtent(Cause.NEWER)
    if hashlib.sha256(page[:-_CHECK_BYTES]).digest() != page[-_CHECK_BYTES:]:
        raise BadExtent(Cause.CORRUPT)
    _, version, facts_bytes, body_bytes, depth, extent, layout, uid_bytes = _HEADER.unpack_from(page)
    uid = page[_HEADER.size : _HEADER.size + uid_bytes]
    if version != VERSION or uid_bytes > _MOST_UID_BYTES or facts_bytes % PAGE or not facts_bytes:
        raise BadExtent(Cause.CORRUPT)
    try:
        return Header(extent, layout, uid.decode(), depth, facts_bytes, body_bytes)
    except UnicodeDecodeError:
        raise BadExtent(Cause.CORRUPT) from None


def facts_bytes(token_bytes: int) -> int:
    """Of the sealed facts of a block of so many bytes of token ids: whole pages."""
    return -(-(token_bytes + _ROOM_FOR_LABELS) // PAGE) * PAGE


class _Sealed(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    root: bytes
    key: bytes
    parent: bytes
    tokens: bytes
    fold: bytes
    documents: tuple[str, ...]
    contributors: tuple[Contributor, ...]
    written_at: float


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(_Sealed)


def encode_facts(facts: Facts, written_at: float, sealed_bytes: int) -> bytes:
    """Padded for a seal of ``sealed_bytes``. Raises MediumFailed where a block has more labels than fit."""
    packed = _ENCODER.encode(
        _Sealed(
            facts.root,
            facts.key,
            facts.parent,
            facts.tokens,
            facts.fold,
            facts.documents,
            facts.contributors,
            written_at,
        )
    )
    room = sealed_bytes - TAG_BYTES - _FACTS_LENGTH.size
    if len(packed) > room:
        problem = f"facts: {len(packed)} bytes of tokens, documents and contributors, {room} fit: keep it in memory"
        raise MediumFailed(problem, code="tier_facts_too_large")
    return (_FACTS_LENGTH.pack(len(packed)) + packed).ljust(sealed_bytes - TAG_BYTES, b"\0")


def decode_facts(header: Header, opened: bytes) -> tuple[Facts, float]:
    """The facts and when they were written (seconds since 1970). Raises BadExtent."""
    (length,) = _FACTS_LENGTH.unpack_from(opened)
    try:
        found = _DECODER.decode(opened[_FACTS_LENGTH.size : _FACTS_LENGTH.size + length])
    except (msgspec.DecodeError, msgspec.ValidationError):
        raise BadExtent(Cause.CORRUPT) from None
    facts = Facts(
        header.namespace,
        found.root,
        found.key,
        found.parent,
        header.depth,
        found.tokens,
        found.fold,
        found.documents,
        found.contributors,
    )
    return facts, found.written_at


def identity(facts: Facts) -> bytes:
    """Of all that a body is right for (32 bytes). Documents and contributors are labels: more may come later."""
    return digest(
        "disk-block",
        {
            "namespace": facts.namespace,
            "root": facts.root,
            "key": facts.key,
            "parent": facts.parent,
            "depth": facts.depth,
            "tokens": facts.tokens,
            "fold": facts.fold,
        },
    )
