"""Receipts: what a member says it has erased, counted by place and signed (I8).

A receipt holds counts and ids, never names, keys or tokens (I12). The signature is Ed25519 over `signed_bytes`, by the
key whose public half the member's Hello carries; making and checking it is for those who may use cryptography.
"""

from enum import StrEnum

import msgspec

from kvgrove_protocol.canonical import digest, encode

SEAL_BYTES = 8


class Place(StrEnum):
    """The closed list of places that an erase covers."""

    DEVICE = "device"
    """Blocks in GPU memory."""
    HOST = "host"
    """Blocks in host memory."""
    DISK = "disk"
    """Extents on the node's disk."""
    DEAD_BOOTS = "dead_boots"
    """Shared memory that earlier boots of the node left."""
    ENGINE_CACHE = "engine_cache"
    """Entries of an engine's own prefix cache."""
    TRANSFERS = "transfers"
    """Copies between tiers that were under way."""
    WARM_LISTS = "warm_lists"
    """Remembered chains and removals that name blocks."""
    ASSEMBLY_CACHE = "assembly_cache"
    """Texts, tokens and keys kept for assembling prompts."""
    RESPONSE_CACHES = "response_caches"
    """Stored answers."""


class EraseOutcome(StrEnum):
    PENDING = "pending"
    """Unreadable already; bytes are still to be wiped."""
    PROVEN = "proven"
    """Overwritten and read back, and survivors wrapped anew."""
    INCOMPLETE = "incomplete"
    """Something refuses to be wiped; tried again, see `Receipt.reason`."""


class EraseFault(StrEnum):
    """Why an erase is INCOMPLETE."""

    NOT_EMPTY = "not_empty"
    """Bytes read back after the wipe were not zero."""
    TIER_FAILED = "tier_failed"
    """A lower tier could not be written or read."""
    REWRAP_FAILED = "rewrap_failed"
    """Survivors could not be wrapped under the new secret."""


class Receipt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Evidence of an erase, from the one who did it. Repeated in each report until the plan no longer asks."""

    uid: str
    """Of the namespace."""
    erasure: str = ""
    """`ErasurePlan.id`; empty: the whole namespace."""
    member: str
    boot: str
    outcome: EraseOutcome
    places: dict[Place, int] = {}
    """What was erased by this boot; zeros are left out."""
    pending: dict[Place, int] = {}
    """What is still to be wiped."""
    reason: EraseFault | None = None
    """Set with INCOMPLETE."""
    seal: bytes = b""
    """`seal_of` the secret that survivors are wrapped under now; empty where nothing is ever wrapped."""
    signature: bytes = b""


class SignedReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """A receipt that was checked, with the key that it was checked against."""

    receipt: Receipt
    public_key: bytes


def signed_bytes(receipt: Receipt) -> bytes:
    """What the signature is over: every field but the signature."""
    return encode(
        {
            "domain": "kvgrove/receipt/v1",
            "uid": receipt.uid,
            "erasure": receipt.erasure,
            "member": receipt.member,
            "boot": receipt.boot,
            "outcome": receipt.outcome.value,
            "places": {place.value: count for place, count in receipt.places.items()},
            "pending": {place.value: count for place, count in receipt.pending.items()},
            "reason": receipt.reason.value if receipt.reason is not None else None,
            "seal": receipt.seal,
        }
    )


def seal_of(secret: bytes) -> bytes:
    """Names a namespace's secret without telling it (8 bytes); empty for none."""
    return digest("secret/seal", secret)[:SEAL_BYTES] if secret else b""
