"""Purge epochs and access revisions of a namespace: counters that never fall (I3).

A purge is minted, as (next counter, fresh nonce), by any change of ``spec.purge.epoch``, upward, downward or by a
revert; when a member has seen higher counters than the state knows, which means that the state was lost or restored
from a backup; when the access policy's version falls, which would make blocks of the older policy readable again; and
when a namespace comes back before its erasure was complete.
"""

from dataclasses import dataclass
from functools import lru_cache

from kvgrove_crds.namespace import PromptCacheNamespaceSpec
from kvgrove_operator.plan_state import Mint, NamespaceState
from kvgrove_protocol.canonical import digest
from kvgrove_protocol.fence import Fence
from kvgrove_protocol.identity import Purge

UNSEEN = Fence(purge=0, documents=0, access=0)


@dataclass(frozen=True)
class Access:
    revision: int
    digest: bytes


def purge(
    spec: PromptCacheNamespaceSpec, before: NamespaceState | None, seen: Fence, *, returned: bool, mint: Mint
) -> Purge:
    """The purge in force after ``before``. ``seen``: the highest counters that any member ever applied."""
    if before is None:
        return Purge(counter=seen.purge + 1, nonce=mint.nonce())
    due = (
        spec.purge.epoch != before.purge_epoch
        or spec.access.policy_version < before.policy_version
        or not before.fence.covers(seen)
        or returned
    )
    if not due:
        return before.purge
    return Purge(counter=max(before.purge.counter, seen.purge) + 1, nonce=mint.nonce())


def access(spec: PromptCacheNamespaceSpec, before: NamespaceState | None, seen: Fence) -> Access:
    """The access revision in force after ``before``; it rises with every change of who may use or share what."""
    who = spec.access
    wanted = _digest(who.tenants, who.scopes, who.policy_version, spec.isolation)
    if before is None:
        return Access(seen.access + 1, wanted)
    if wanted == before.access and seen.access <= before.access_revision:
        return Access(before.access_revision, wanted)
    return Access(max(before.access_revision, seen.access) + 1, wanted)


@lru_cache(maxsize=4096)  # every namespace is planned again and again, and seldom another way
def _digest(tenants: tuple[str, ...] | None, scopes: tuple[str, ...], policy_version: int, isolation: str) -> bytes:
    return digest(
        "access",
        {
            "tenants": sorted(tenants) if tenants is not None else None,
            "scopes": sorted(scopes),
            "policy_version": policy_version,
            "isolation": isolation,
        },
    )
