"""A request as the cache sees it: realm, folds, zones (I1, I2, I3, I9).

The node computes all of it itself, from tokens, spans, its own plan and the caller; nothing that a gateway says about
keys is taken.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kvgrove_daemon.accounting import Zone, zones
from kvgrove_daemon.cache.chains import Chain, Marks, marks
from kvgrove_daemon.cache.contributors import Writer
from kvgrove_daemon.cache.store import BlockStore
from kvgrove_daemon.namespaces import HostedNamespace
from kvgrove_protocol.chain import TOKEN_BYTES, Span, check_spans
from kvgrove_protocol.errors import Malformed
from kvgrove_protocol.identity import Caller, Contributor, Purge, RealmInputs, contributor


@dataclass(frozen=True)
class CachedPrompt:
    """What a chain is made of, and how its misses are explained."""

    namespace_uid: str
    root: bytes
    private_realm: bytes
    marks: Marks
    contributor: Contributor
    zones: list[Zone]


def check_tokens(tokens: bytes, spans: Sequence[Span], vocab_size: int) -> int:
    """The number of tokens; raises Malformed for what no tokenizer of this model can have produced."""
    count, rest = divmod(len(tokens), TOKEN_BYTES)
    if rest or not count:
        raise Malformed("tokens", f"{len(tokens)} bytes is no positive multiple of {TOKEN_BYTES}")
    if np.frombuffer(tokens, "<u4").max() >= vocab_size:
        raise Malformed("tokens", f"a token id is not below the model's vocabulary of {vocab_size}")
    check_spans(spans, count)
    return count


def cached_prompt(
    namespace: HostedNamespace,
    caller: Caller,
    tokens: bytes,
    spans: Sequence[Span],
    *,
    block_size: int,
    throwaway: Callable[[], bytes],
) -> CachedPrompt:
    """Root, folds and zones of a prompt that may use the cache.

    ``throwaway``: 32 fresh random bytes, for a caller without the field that the isolation level asks for.
    """
    realm = namespace.realm
    if realm is None:
        raise ValueError("the namespace has no named generation: admission comes first")
    private = realm.private_realm(namespace.plan.isolation, caller, throwaway=throwaway)
    tag = _timeless(realm).private_realm(namespace.plan.isolation, caller, throwaway=throwaway)
    return CachedPrompt(
        namespace_uid=namespace.plan.uid,
        root=realm.shared_realm(),
        private_realm=private,
        marks=marks(spans, private, block_size),
        contributor=contributor(namespace.plan.pseudonym_key, caller.tenant, caller.user),
        zones=zones(spans, tokens, realm, tag, block_size),
    )


def chain_of(store: BlockStore, prompt: CachedPrompt, tokens: bytes) -> Chain:
    """The chain of ``tokens`` in ``store``."""
    folds, documents, private_from = prompt.marks
    return store.keys(
        prompt.root,
        tokens,
        folds,
        namespace=prompt.namespace_uid,
        documents=documents,
        writer=Writer(prompt.contributor, private_from),
    )


def _timeless(realm: RealmInputs) -> RealmInputs:
    """The realm without its versions: names a caller across them, and roots no chain."""
    return RealmInputs(generation=b"", namespace_uid=realm.namespace_uid, purge=Purge(0, b""), policy_version=0)
