"""Why a prompt token was not reused: the closed list (I10).

Each prompt token is either reused or carries exactly one of these, and the counts add up to the prompt. Callers see
reasons that follow from their own realm's history only; what other realms hold reads ``new`` to them (I2, ISO-03).
"""

from enum import StrEnum


class MissReason(StrEnum):
    NEW = "new"
    """Never stored in the caller's realm on this node."""
    PARTIAL_BLOCK = "partial_block"
    """In the last, not full block, or the last token, which is always computed."""
    EVICTED = "evicted"
    """Was resident and gave way to pressure."""
    EXPIRED = "expired"
    """Was resident and outlived its time."""
    GENERATION_CHANGED = "generation_changed"
    """Model, tokenizer, template, adapter or KV format changed."""
    DOCUMENT_CHANGED = "document_changed"
    """A referenced document has a newer version."""
    PURGED = "purged"
    """The namespace's purge epoch or access policy moved on."""
    RETOKENISED = "retokenised"
    """The same text came back as other tokens."""
    UNCACHEABLE = "uncacheable"
    """Holds a part whose content has no digest."""
    BYPASSED = "bypassed"
    """The request asks for what reuse does not compute, such as the prompt's own log probabilities."""
    SCOPE_DENIED = "scope_denied"
    """The caller's current permission does not cover it."""
    CONTROL_PLANE_LOST = "control_plane_lost"
    """No valid freshness lease: served cold."""
    FENCE_NEWER = "fence_newer"
    """The gateway knew a newer state than the node: served cold, not stored."""
    SUSPENDED = "suspended"
    """The namespace's cache is switched off."""
    BUILDING = "building"
    """Another request is computing it and the bounded wait ran out."""
    NOT_WORTH_LOADING = "not_worth_loading"
    """On a slower tier, and computing it again is quicker."""
    CACHE_ERROR = "cache_error"
    """Trouble of the cache itself; the request was served cold."""


class BypassReason(StrEnum):
    """Why what was computed was not stored. Counted, never an error (I7)."""

    NO_ROOM = "no_room"
    NO_LEASE = "no_lease"
    FENCE_MOVED = "fence_moved"
    QUOTA = "quota"
    COLD = "cold"
