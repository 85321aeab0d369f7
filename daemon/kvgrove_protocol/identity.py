"""Who may share what: generations, layout fingerprints and realms (DESIGN section 4; invariants I1, I2, I3, I9).

A *generation* names everything that makes KV incompatible between two equal token sequences. A *realm* is the root of
a chain of block keys: the *shared realm* roots the blocks that every caller of a namespace may meet, the *private
realm* is folded into the chain where text begins that only some callers may meet.
Pure: randomness for throw-away realms is injected.
"""

import hashlib
import hmac
from base64 import urlsafe_b64encode
from collections.abc import Callable
from enum import StrEnum

import msgspec

from kvgrove_protocol.canonical import Canonical, digest

DIGEST_BYTES = 32
PSEUDONYM_BYTES = 16


class Isolation(StrEnum):
    """What separates callers of one namespace, from least to most."""

    PUBLIC = "Public"
    TENANT = "Tenant"
    SCOPE = "Scope"
    USER = "User"
    SESSION = "Session"


class GenerationInputs(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that makes cached KV unusable when it changes.

    Digests are ``sha256:<hex>`` of content, never names or load orders. ``rope`` and ``attention`` are the model's own
    settings after overrides.
    """

    weights: str
    tokenizer: str
    chat_template: str
    kv_dtype: str
    block_size: int
    weights_quantization: str = "none"
    adapter: str | None = None
    rope: dict[str, str | int | float | bool | None] = {}
    attention: dict[str, str | int | float | bool | None] = {}
    kv_codec: str = "none"


class LayoutFingerprint(msgspec.Struct, frozen=True, kw_only=True):
    """How one node lays the bytes of a block out.

    Not part of any key: compared before stored or received bytes are used.
    """

    abi: str
    """Engine and memory order, e.g. ``kvgrove/layer-major/1``."""
    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    block_size: int
    kv_codec: str = "none"
    """What blocks went through on their way to a lower tier."""
    tensor_parallel_rank: int = 0
    tensor_parallel_size: int = 1

    def digest(self) -> bytes:
        return digest("layout", msgspec.to_builtins(self))


class Purge(msgspec.Struct, frozen=True):
    """The epoch of a namespace: a counter that never falls, and a nonce that no restored backup can bring back."""

    counter: int
    nonce: bytes


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """A verified caller.

    ``session`` only narrows within the verified user; it is the one field that a request may choose.
    """

    tenant: str | None = None
    user: str | None = None
    scopes: tuple[str, ...] = ()
    session: str | None = None


class RealmInputs(msgspec.Struct, frozen=True, kw_only=True):
    """What the shared realm of a namespace is made of."""

    generation: bytes
    namespace_uid: str
    purge: Purge
    policy_version: int

    def _canonical(self) -> dict[str, Canonical]:
        return {
            "generation": self.generation,
            "namespace_uid": self.namespace_uid,
            "purge_counter": self.purge.counter,
            "purge_nonce": self.purge.nonce,
            "policy_version": self.policy_version,
        }

    def shared_realm(self) -> bytes:
        """The root key of this namespace's chains (32 bytes)."""
        return digest("realm/shared", self._canonical())

    def private_realm(self, isolation: Isolation, caller: Caller, *, throwaway: Callable[[], bytes]) -> bytes:
        """The realm of what ``caller`` says (32 bytes).

        Mixes in the fields of the isolation level and no others. A level whose field the caller lacks gets a realm of
        its own from ``throwaway`` (fresh random bytes): never a common one (ISO-10).
        """
        fields = _level_fields(isolation, caller)
        if fields is None:
            return digest("realm/throwaway", self._canonical() | {"once": throwaway()})
        return digest("realm/private", self._canonical() | {"level": isolation.value, "caller": fields})


def _level_fields(isolation: Isolation, caller: Caller) -> dict[str, Canonical] | None:
    fields: dict[str, Canonical]
    match isolation:
        case Isolation.PUBLIC:
            return {}
        case Isolation.TENANT:
            fields = {"tenant": caller.tenant}
        case Isolation.SCOPE:
            fields = {"tenant": caller.tenant, "scopes": sorted(set(caller.scopes))}
        case Isolation.USER:
            fields = {"tenant": caller.tenant, "user": caller.user}
        case Isolation.SESSION:
            fields = {"tenant": caller.tenant, "user": caller.user, "session": caller.session}
    return None if any(value is None or value == "" for value in fields.values()) else fields


class Contributor(msgspec.Struct, frozen=True, array_like=True):
    """Whose text a block may hold, as keyed pseudonyms: found again by an erase, and telling nobody else anything."""

    tenant: bytes = b""
    """16 bytes; empty: unknown."""
    user: bytes = b""
    """16 bytes; empty: unknown, so an erase of any user of the tenant must include it."""


NOBODY = Contributor()
"""Of blocks that hold declared texts only."""


def contributor(key: bytes, tenant: str | None, user: str | None) -> Contributor:
    """The pseudonyms of a caller under ``key``, a namespace's pseudonym key (32 bytes)."""
    if not tenant:
        return NOBODY
    whole = _pseudonym(key, {"tenant": tenant})
    return Contributor(whole, _pseudonym(key, {"tenant": tenant, "user": user}) if user else b"")


def _pseudonym(key: bytes, fields: dict[str, Canonical]) -> bytes:
    return hmac.digest(key, digest("contributor", fields), hashlib.sha256)[:PSEUDONYM_BYTES]


def generation(inputs: GenerationInputs) -> bytes:
    """The generation's digest (32 bytes): a change of any field gives a new one."""
    fields: dict[str, Canonical] = msgspec.to_builtins(inputs)
    return digest("generation", fields)


def changed_fields(old: GenerationInputs, new: GenerationInputs) -> tuple[str, ...]:
    """Names of the fields in which two generations differ, sorted: what a status tells people."""
    before, after = msgspec.to_builtins(old), msgspec.to_builtins(new)
    return tuple(sorted(name for name in before if before[name] != after[name]))


def short(digest_bytes: bytes) -> str:
    """The first 12 hex digits: for labels, columns and logs, never for comparison."""
    return digest_bytes.hex()[:12]


def cache_salt(fleet_secret: bytes, private_realm: bytes, document_revision: int) -> str:
    """The salt for engines that know one salt per request (43 characters of base64url: vLLM accepts no ``@ / \\``).

    Keyed, so that the salt in an engine's log opens nothing; it changes with tenant, version and document revision, so
    that the engine's own prefix cache inherits all three.
    """
    message = private_realm + document_revision.to_bytes(8, "big")
    mac = hmac.new(fleet_secret, message, hashlib.sha256).digest()
    return urlsafe_b64encode(mac).decode("ascii")[:43]
