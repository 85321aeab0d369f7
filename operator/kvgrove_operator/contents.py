"""Prefixes and documents of a namespace: which texts are in force, under which epochs (I3).

A document that is new, changed, or back after a withdrawal takes the next value of the namespace's document revision as
its epoch, and no value is ever given twice; so v1 -> v2 -> v1 gives three epochs, and blocks of the first v1 stay
unreadable. The version text, the digest and the scopes make a document another one; its place in the list does not.
A changed prefix raises the revision too: a gateway that has not heard must not go on with the older text.

Every change cuts first: ``update: WarmFirst`` would keep an older text in force for a while, and until a rollout does
that, serving the newer one cold is the safe side.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from kvgrove_crds.namespace import PromptCacheNamespaceSpec
from kvgrove_crds.namespace_content import DocumentSpec, PrefixSpec
from kvgrove_operator.plan_state import DocumentEntry, NamespaceState, PrefixEntry
from kvgrove_protocol.control import DocumentPlan, PrefixPlan

_NOT_YET = 0
"""Stands for the epoch of an entry that has none so far; revisions start at 1."""


@dataclass(frozen=True)
class Contents:
    revision: int
    documents: dict[str, DocumentEntry]
    """In the order of the spec."""
    prefixes: dict[str, PrefixEntry]
    bodies: dict[bytes, bytes]
    """Digest -> text, of what is in force and known."""
    missing: tuple[str, ...]
    """Field paths of texts that could not be resolved: what was in force for them stays, what is new is left out."""

    def document_plans(self) -> list[DocumentPlan]:
        return [
            DocumentPlan(name=name, version=entry.version, body=entry.digest, epoch=entry.epoch, scopes=[*entry.scopes])
            for name, entry in self.documents.items()
        ]

    def prefix_plans(self) -> list[PrefixPlan]:
        """A document that a prefix names and that is not in force is left out of it."""
        return [
            PrefixPlan(
                name=name,
                version=entry.version,
                body=entry.digest,
                documents=[part for part in entry.documents if part in self.documents],
            )
            for name, entry in self.prefixes.items()
        ]


def contents(
    spec: PromptCacheNamespaceSpec, before: NamespaceState | None, kept: Mapping[bytes, bytes], *, seen: int = 0
) -> Contents:
    """The contents that follow ``before``.

    ``kept``: bodies of the last plan, for texts that cannot be had now. ``seen``: the highest document revision that
    any member ever applied; one above the state's means that the state was lost or restored, and is exceeded.
    """
    texts = _Texts(kept)
    old_documents = before.documents if before is not None else {}
    old_prefixes = before.prefixes if before is not None else {}
    documents: dict[str, DocumentEntry] = {}
    for index, document in enumerate(spec.documents):
        held = old_documents.get(document.name)
        name = texts.digest(document, f"spec.documents[{index}]", held)
        if name is not None:
            entry = DocumentEntry(version=document.version, digest=name, scopes=document.scopes, epoch=_NOT_YET)
            documents[document.name] = _kept_if_same(held, entry)
    prefixes: dict[str, PrefixEntry] = {}
    for index, prefix in enumerate(spec.prefixes):
        name = texts.digest(prefix, f"spec.prefixes[{index}]", old_prefixes.get(prefix.name))
        if name is not None:
            prefixes[prefix.name] = PrefixEntry(version=prefix.version, digest=name, documents=prefix.documents)
    held_revision = before.document_revision if before is not None else 0
    same = documents == old_documents and prefixes == old_prefixes
    revision = held_revision if before is not None and same and seen <= held_revision else max(held_revision, seen) + 1
    for label, entry in documents.items():
        if entry.epoch == _NOT_YET:
            documents[label] = replace(entry, epoch=revision)
    return Contents(revision, documents, prefixes, texts.bodies, tuple(texts.missing))


class _Texts:
    """Names texts by their digests, and falls back to what was in force for those that cannot be had."""

    def __init__(self, kept: Mapping[bytes, bytes]) -> None:
        self.bodies: dict[bytes, bytes] = {}
        self.missing: list[str] = []
        self._kept = kept

    def digest(
        self, content: DocumentSpec | PrefixSpec, path: str, held: DocumentEntry | PrefixEntry | None
    ) -> bytes | None:
        if content.text is not None:
            body = content.text.encode()
            name = body_digest(body)
            self.bodies[name] = body
            return name
        self.missing.append(path)
        if held is None:
            return None
        if held.digest in self._kept:
            self.bodies[held.digest] = self._kept[held.digest]
        return held.digest


def _kept_if_same(held: DocumentEntry | None, entry: DocumentEntry) -> DocumentEntry:
    """Scopes are a set: their order is no change."""
    if held is None or (held.version, held.digest) != (entry.version, entry.digest):
        return entry
    return held if set(held.scopes) == set(entry.scopes) else entry


def body_digest(body: bytes) -> bytes:
    """The name of a body on the wire: its SHA-256 (32 bytes)."""
    return hashlib.sha256(body).digest()
