"""Bodies of prefixes, documents and templates: named by digest, checked on arrival, split over bounded replies.

Pure. A reply leaves out what the planner does not know and what no longer fits the frame; the asker asks again for as
long as replies bring something new.
"""

import hashlib
from collections.abc import Collection, Mapping

from kvgrove_protocol.codec import MAX_FRAME_BYTES
from kvgrove_protocol.control import Bodies, BodyRequest

REPLY_BYTES = MAX_FRAME_BYTES // 2
"""A reply ends after the body that passes this; with bodies of at most 8 MiB it stays within one frame."""

MAX_DIGESTS = 1_024
"""Digests answered per request; a longer list is cut off."""


def body_digest(body: bytes) -> bytes:
    """The name of ``body``: its SHA-256 (32 bytes)."""
    return hashlib.sha256(body).digest()


def answer(request: BodyRequest, known: Mapping[bytes, bytes]) -> Bodies:
    """The bodies asked for, as far as they are known and fit one reply; at least one if any is known."""
    items: list[tuple[bytes, bytes]] = []
    size = 0
    for digest in request.digests[:MAX_DIGESTS]:
        body = known.get(digest)
        if body is None:
            continue
        if items and size + len(body) > REPLY_BYTES:
            break
        items.append((digest, body))
        size += len(body)
    return Bodies(items=items)


def accept(reply: Bodies, wanted: Collection[bytes]) -> dict[bytes, bytes]:
    """Those bodies of ``reply`` that were asked for and are what their digests say; the rest is left out."""
    return {digest: body for digest, body in reply.items if digest in wanted and body_digest(body) == digest}
