"""The one byte encoding that digests are taken over.

Typed and length-prefixed, so that no two different values share an encoding (ISO-05) and no process, Python version or
insertion order changes it (COR-12). It is written, never read back: the wire uses msgpack.

========  ======================================================
type      bytes
========  ======================================================
None      ``n``
bool      ``t`` / ``f``
int       ``i`` length decimal digits
float     ``d`` IEEE 754 double, big endian (NaN is refused)
str       ``s`` length UTF-8 (not normalised: text is what it is)
bytes     ``b`` length bytes
sequence  ``l`` count items
mapping   ``m`` count (key, value) pairs in the order of the keys' UTF-8
========  ======================================================

Lengths and counts are unsigned 32-bit big endian.
"""

import hashlib
import math
import struct
from collections.abc import Mapping, Sequence
from typing import TypeAlias

Canonical: TypeAlias = "bool | int | float | str | bytes | Sequence[Canonical] | Mapping[str, Canonical] | None"

_LENGTH = struct.Struct(">I")
_DOUBLE = struct.Struct(">d")


def encode(value: Canonical) -> bytes:
    """Encode ``value``; raises TypeError for a type, ValueError for a number that has no canonical form."""
    out: list[bytes] = []
    _write(value, out)
    return b"".join(out)


def digest(domain: str, value: Canonical) -> bytes:
    """SHA-256 (32 bytes) of ``value`` in ``domain``. Domains keep, say, a realm from ever equalling a generation."""
    return hashlib.sha256(encode([f"kvgrove/{domain}/v1", value])).digest()


def _write(value: Canonical, out: list[bytes]) -> None:
    if value is None:
        out.append(b"n")
    elif isinstance(value, bool):  # before int: bool is one
        out.append(b"t" if value else b"f")
    elif isinstance(value, int):
        _sized(b"i", str(int(value)).encode(), out)
    elif isinstance(value, float):
        if math.isnan(value):
            raise ValueError("NaN has no canonical encoding")
        out += (b"d", _DOUBLE.pack(value))
    elif isinstance(value, str):
        _sized(b"s", value.encode(), out)
    elif isinstance(value, bytes):
        _sized(b"b", value, out)
    elif isinstance(value, Mapping):
        pairs = sorted((key.encode(), item) for key, item in value.items())
        out += (b"m", _LENGTH.pack(len(pairs)))
        for key, item in pairs:
            _sized(b"s", key, out)
            _write(item, out)
    elif isinstance(value, Sequence):
        out += (b"l", _LENGTH.pack(len(value)))
        for item in value:
            _write(item, out)
    else:
        raise TypeError(f"{type(value).__name__} has no canonical encoding")


def _sized(tag: bytes, body: bytes, out: list[bytes]) -> None:
    out += (tag, _LENGTH.pack(len(body)), body)
