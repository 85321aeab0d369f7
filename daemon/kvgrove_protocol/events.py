"""Residency events: how routers learn what a node holds (DESIGN section 5, point 3).

A node numbers its batches from 0 in each boot. A consumer that sees another boot drops what it knew; one that sees a
gap asks for a snapshot. The snapshot says up to which batch it is true; later batches are applied on top.
Keys of a batch are concatenated (32 bytes each): a router needs set membership only, since residency is rooted (I6).

Each batch also says how much the node lists after it, as a count and a digest that does not depend on order. A consumer
that applied everything has the same ones; another one has drifted, and asks for a snapshot.

*Beacons* say what a node is only computing, so that a cold prefix that is asked for through several gateways is built
once. They are hints with a time to live: what a node that died unheard had told runs out by itself. Whoever does not
know them reads past them.
"""

import struct
from functools import reduce
from operator import xor

import msgspec

from kvgrove_protocol.errors import Malformed
from kvgrove_protocol.identity import DIGEST_BYTES

DEVICE, HOST, DISK = "device", "host", "disk"
"""The tiers, nearest first."""


class Stored(msgspec.Struct, frozen=True, tag="stored", tag_field="type", omit_defaults=True):
    """These blocks became READY on ``tier``, parents before children."""

    keys: bytes
    tier: str = HOST


class Removed(msgspec.Struct, frozen=True, tag="removed", tag_field="type", omit_defaults=True):
    """These blocks are no longer on ``tier``."""

    keys: bytes
    tier: str = HOST


class Cleared(msgspec.Struct, frozen=True, tag="cleared", tag_field="type"):
    """The node holds nothing any more."""


Event = Stored | Removed | Cleared


class NodeLoad(msgspec.Struct, frozen=True):
    """What a router needs to estimate a node's finish time."""

    queued_prefill_tokens: int
    running: int
    prefill_tokens_per_s: float
    """Measured; 0 while nothing was prefilled yet."""
    decode_steps_per_s: float
    free_blocks: int
    blocks: int = 0
    """Free or not; 0 from nodes that do not say it."""

    @property
    def full(self) -> bool:
        """Whether what is stored now pushes out something else, or will soon: under an eighth is free."""
        return self.free_blocks * 8 < self.blocks


class Listing(msgspec.Struct, frozen=True, array_like=True):
    """What is READY on a node, in short: equal for equal sets of (key, tier)."""

    count: int
    digest: int
    """64 bits: see `fingerprint`."""


NOTHING_LISTED = Listing(0, 0)


class Build(msgspec.Struct, frozen=True, array_like=True):
    """Blocks that the node computes for a prompt it has admitted."""

    number: int
    """Unique in the node's boot; rises."""
    keys: bytes
    """Parents first; of the first `MAX_BUILD_KEYS` that it computes: what prompts have in common is their beginning."""
    seconds: float
    """To live, from when it is heard; a follower may forget it earlier, and does at its end."""


class Beacons(msgspec.Struct, frozen=True, array_like=True):
    """What changed since the batch before."""

    begun: list[Build] = []
    ended: list[int] = []
    """Numbers: all of the build is READY, or will not be. Unknown ones are no matter."""


MAX_BUILD_KEYS = 256
MAX_BUILDS = 64
"""That one node tells of at a time: 512 KiB of keys in a snapshot."""


class EventBatch(msgspec.Struct, frozen=True, tag="event_batch", tag_field="type"):
    """Batch ``seq`` of ``boot``. An empty one is a heartbeat: it carries load, and shows gaps while the node idles."""

    boot: str
    seq: int
    events: list[Event]
    load: NodeLoad
    listing: Listing | None = None
    """Of all that is READY after this batch; None from a node that does not say."""
    beacons: Beacons | None = None
    """None: no build began or ended, or the node does not say."""


class SnapshotChunk(msgspec.Struct, frozen=True, tag="snapshot_chunk", tag_field="type"):
    """Part ``index`` of the list of READY blocks as of batch ``seq`` (exclusive of later ones)."""

    boot: str
    seq: int
    index: int
    last: bool
    keys: bytes
    tier: str = HOST
    builds: list[Build] = []
    """Under way as of ``seq``; in the first chunk."""


SNAPSHOT_CHUNK_KEYS = 16_384


def count_keys(joined: bytes) -> int:
    """How many keys are concatenated; Malformed if the length is no multiple of 32."""
    if len(joined) % DIGEST_BYTES:
        raise Malformed("keys", f"{len(joined)} bytes is no multiple of {DIGEST_BYTES}")
    return len(joined) // DIGEST_BYTES


def split_keys(joined: bytes) -> list[bytes]:
    """The single keys of a concatenation; Malformed if its length is no multiple of 32."""
    count_keys(joined)
    return [joined[start : start + DIGEST_BYTES] for start in range(0, len(joined), DIGEST_BYTES)]


_WORDS = DIGEST_BYTES // 8
_TIER_WORDS = {DEVICE: 0, HOST: 1, DISK: 2}


def fingerprint(joined: bytes, tier: str) -> int:
    """What these keys (concatenated) on ``tier`` add to, or take from, a listing's digest by exclusive or.

    Keys are uniform already, so 64 of their bits serve as they are; each tier takes other ones, so that a block that
    moves between tiers changes the digest. Malformed if the length is no multiple of 32.
    """
    words = struct.unpack(f"<{count_keys(joined) * _WORDS}Q", joined)
    return reduce(xor, words[_TIER_WORDS.get(tier, _TIER_WORDS[DISK]) :: _WORDS], 0)
