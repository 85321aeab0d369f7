"""Keys of the disk tier: a random one for each extent, wrapped by the secret of its namespace.

Role: all use of ciphers. AES-256-GCM throughout (NIST SP 800-38D). Invariants: a data key seals one extent and is used
once for each of its two parts, under fixed distinct nonces (a nonce need only differ under the same key); a secret only
ever wraps data keys, under a random nonce (96 bits: sound for 2^32 wraps); every seal is bound to what it belongs to,
so that nothing sealed can be moved to another place. A secret is told apart by a keyed name that reveals nothing.
Must not know: files, slots.

Python cannot wipe what it once held: a forgotten secret goes with the garbage collector, and is never written anywhere.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from kvgrove_daemon.cache.tiers.disk.causes import BadExtent, Cause
from kvgrove_daemon.cache.tiers.disk.filesystem import Buffer
from kvgrove_protocol.errors import Malformed

KEY_BYTES: Final = 32
TAG_BYTES: Final = 16
SECRET_NAME_BYTES: Final = 16
LEAST_SECRET_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_FACTS_NONCE: Final = b"kvgrovefacts"
_BODY_NONCE: Final = b"kvgrove-body"

Entropy = Callable[[int], bytes]
"""So many unpredictable bytes."""


@dataclass(frozen=True, slots=True)
class Secret:
    """A namespace's secret in the form it is used in. ``name`` may be written to disk, ``wrapping`` never."""

    name: bytes
    wrapping: bytes = field(repr=False)

    @classmethod
    def of(cls, secret: bytes) -> Secret:
        """Raises Malformed for one that is too short to keep anything secret."""
        if len(secret) < LEAST_SECRET_BYTES:
            raise Malformed("secret", f"{len(secret)} bytes, at least {LEAST_SECRET_BYTES} are needed")
        name = hmac.digest(secret, b"kvgrove/disk/secret-name/1", hashlib.sha256)[:SECRET_NAME_BYTES]
        return cls(name, hmac.digest(secret, b"kvgrove/disk/wrapping/1", hashlib.sha256))


_WRAP: Final = struct.Struct(f">8s{SECRET_NAME_BYTES}s{_NONCE_BYTES}s{KEY_BYTES + TAG_BYTES}s")
_WRAP_MAGIC: Final = b"kvgkey\x00\x01"
_CHECK_BYTES: Final = 32


def wrap(data_key: bytes, secret: Secret, header: bytes, entropy: Entropy, size: int) -> bytes:
    """A key page of ``size`` bytes that gives ``data_key`` back to who has ``secret`` and the extent's ``header``."""
    nonce = entropy(_NONCE_BYTES)
    wrapped = AESGCM(secret.wrapping).encrypt(nonce, data_key, _bound(b"key", header))
    page = _WRAP.pack(_WRAP_MAGIC, secret.name, nonce, wrapped).ljust(size - _CHECK_BYTES, b"\0")
    return page + hashlib.sha256(page).digest()


def wrapped_by(page: bytes) -> bytes | None:
    """The name of the secret that a key page needs; None for an empty, torn or damaged page."""
    body, check = page[:-_CHECK_BYTES], page[-_CHECK_BYTES:]
    if hashlib.sha256(body).digest() != check or not body.startswith(_WRAP_MAGIC):
        return None
    name: bytes = _WRAP.unpack_from(body)[1]
    return name


def unwrap(page: bytes, secret: Secret, header: bytes) -> bytes:
    """The data key. The page must be one that `wrapped_by` names ``secret`` for; raises BadExtent."""
    _, _, nonce, wrapped = _WRAP.unpack_from(page)
    return _open(secret.wrapping, nonce, wrapped, _bound(b"key", header))


def seal_facts(data_key: bytes, facts: bytes, header: bytes) -> bytes:
    return AESGCM(data_key).encrypt(_FACTS_NONCE, facts, _bound(b"facts", header))


def open_facts(data_key: bytes, sealed: Buffer, header: bytes) -> bytes:
    """Raises BadExtent."""
    return _open(data_key, _FACTS_NONCE, sealed, _bound(b"facts", header))


def seal_body(data_key: bytes, body: Buffer, header: bytes, identity: bytes) -> bytes:
    return AESGCM(data_key).encrypt(_BODY_NONCE, body, _bound(b"body", header, identity))


def open_body(data_key: bytes, sealed: Buffer, header: bytes, identity: bytes) -> bytes:
    """Raises BadExtent."""
    return _open(data_key, _BODY_NONCE, sealed, _bound(b"body", header, identity))


def _bound(part: bytes, header: bytes, identity: bytes = b"") -> bytes:
    """The associated data: the parts have fixed lengths but for the label, which ends in a zero byte."""
    return b"kvgrove/disk/1/" + part + b"\0" + hashlib.sha256(header).digest() + identity


def _open(key: bytes, nonce: bytes, sealed: Buffer, bound: bytes) -> bytes:
    try:
        return AESGCM(key).decrypt(nonce, sealed, bound)
    except (InvalidTag, ValueError):  # ValueError: shorter than a tag
        raise BadExtent(Cause.CORRUPT) from None
