"""Prefixes and documents of a namespace: which texts are in force, under which epochs (I3).

A document that is new, changed, or back after a withdrawal takes the next value of the namespace's document revision as
its epoch, and no value is ever given twice; so v1 -> v2 -> v1 gives three epochs, and blocks of the first v1 stay
unreadable. The version text, the digest and the scopes make a document another one; its place in the list does not.
A changed prefix raises the revision too: a gateway that has not heard must not go on with the older text.

A change cuts first, unless the document says ``update: WarmFirst``: see `coming`.
"""

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from kvgrove_crds.namespace import PromptCacheNamespaceSpec
from kvgrove_crds.namespace_content import DocumentSpec, PrefixSpec
from kvgrove_operator.coming import ComingRules, switched, waits
from kvgrove_operator.plan_state import ComingEntry, DocumentEntry, NamespaceState, PrefixEntry
from kvgrove_protocol.control import DocumentPlan, PrefixPlan

_NOT_YET = 0
"""Stands for the epoch of an entry that has none so far; revisions start at 1."""


@dataclass(frozen=True)
class Contents:
    revision: int
    documents: dict[str, DocumentEntry]
    """In the order of the spec."""
    coming: dict[str, ComingEntry]
    epoch: int
    """The highest that any document was ever given."""
    prefixes: dict[str, PrefixEntry]
    bodies: dict[bytes, bytes]
    """Digest -> text, of what is in force or coming, and known; of what is withdrawn nothing is handed out."""
    missing: tuple[str, ...]
    """Field paths of texts that could not be resolved: what was in force for them stays, what is new is left out."""

    def document_plans(self) -> list[DocumentPlan]:
        return [_document_plan(name, entry) for name, entry in self.documents.items()]

    def coming_plans(self) -> list[DocumentPlan]:
        """What nodes are to warm, and nobody may refer to yet."""
        return [_document_plan(name, each.entry) for name, each in self.coming.items()]

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
    spec: PromptCacheNamespaceSpec,
    before: NamespaceState | None,
    kept: Mapping[bytes, bytes],
    rules: ComingRules,
    *,
    seen: int = 0,
    raised: bool = False,
) -> Contents:
    """The contents that follow ``before``; with ``raised`` under a higher revision in any case.

    ``kept``: bodies of the last plan, for texts that cannot be had now. ``seen``: the highest document revision that
    any member ever applied; one above the state's means that the state was lost or restored, and is exceeded.
    """
    texts = _Texts(kept)
    old_documents = before.documents if before is not None else {}
    old_prefixes = before.prefixes if before is not None else {}
    old_coming = before.coming if before is not None else {}
    held_revision = before.document_revision if before is not None else 0
    epoch = max(before.document_epoch if before is not None else 0, held_revision, seen)
    documents: dict[str, DocumentEntry] = {}
    coming: dict[str, ComingEntry] = {}
    for index, document in enumerate(spec.documents):
        held = old_documents.get(document.name)
        wanted = texts.document(document, f"spec.documents[{index}]", held)
        if wanted is None:
            continue
        if held is not None and _same(held, wanted):
            documents[document.name] = held
        elif held is not None and waits(document, held, wanted, old_text=texts.keep(held.digest)):
            documents[document.name] = held
            known = old_coming.get(document.name)
            if known is None or not _same(known.entry, wanted):
                epoch += 1
                deadline = rules.now + document.warm_deadline.seconds
                known = ComingEntry(entry=replace(wanted, epoch=epoch), deadline=deadline)
            coming[document.name] = known
        else:
            documents[document.name] = wanted
    for name in switched(coming, rules):
        documents[name] = coming.pop(name).entry
    prefixes: dict[str, PrefixEntry] = {}
    for index, prefix in enumerate(spec.prefixes):
        found = texts.prefix(prefix, f"spec.prefixes[{index}]", old_prefixes.get(prefix.name))
        if found is not None:
            prefixes[prefix.name] = found
    same = documents == old_documents and prefixes == old_prefixes and not raised
    revision = held_revision if before is not None and same and seen <= held_revision else max(held_revision, seen) + 1
    fresh = max(revision, epoch + 1)
    for label, entry in documents.items():
        if entry.epoch == _NOT_YET:
            documents[label] = replace(entry, epoch=fresh)
            epoch = fresh
    in_use = [*documents.values(), *(each.entry for each in coming.values())]
    bodies = texts.only({entry.digest for entry in in_use} | {entry.digest for entry in prefixes.values()})
    return Contents(revision, documents, coming, max(epoch, revision), prefixes, bodies, tuple(texts.missing))


def _document_plan(name: str, entry: DocumentEntry) -> DocumentPlan:
    return DocumentPlan(name=name, version=entry.version, body=entry.digest, epoch=entry.epoch, scopes=[*entry.scopes])


class _Texts:
    """Names texts by their digests, and falls back to what was in force for those that cannot be had."""

    def __init__(self, kept: Mapping[bytes, bytes]) -> None:
        self.missing: list[str] = []
        self._bodies: dict[bytes, bytes] = {}
        self._kept = kept

    def only(self, digests: Collection[bytes]) -> dict[bytes, bytes]:
        """Digest -> text, of those of ``digests`` that are known."""
        return {digest: body for digest, body in self._bodies.items() if digest in digests}

    def keep(self, digest: bytes) -> bool:
        """Hand an older text out for longer; False where it is not known any more."""
        if digest in self._kept:
            self._bodies[digest] = self._kept[digest]
        return digest in self._bodies

    def document(self, content: DocumentSpec, path: str, held: DocumentEntry | None) -> DocumentEntry | None:
        """The entry that is wanted, without its epoch; who may refer to it follows the spec even without a text."""
        body = self._digest(content, path)
        if body is not None:
            return DocumentEntry(version=content.version, digest=body, scopes=content.scopes, epoch=_NOT_YET)
        if held is None:
            return None
        self.keep(held.digest)
        return replace(held, scopes=content.scopes, epoch=_NOT_YET)

    def prefix(self, content: PrefixSpec, path: str, held: PrefixEntry | None) -> PrefixEntry | None:
        body = self._digest(content, path)
        if body is not None:
            return PrefixEntry(version=content.version, digest=body, documents=content.documents)
        if held is None:
            return None
        self.keep(held.digest)
        return replace(held, documents=content.documents)

    def _digest(self, content: DocumentSpec | PrefixSpec, path: str) -> bytes | None:
        if content.text is None:
            self.missing.append(path)
            return None
        body = content.text.encode()
        name = body_digest(body)
        self._bodies[name] = body
        return name


def _same(held: DocumentEntry, wanted: DocumentEntry) -> bool:
    """Scopes are a set: their order is no change."""
    return (held.version, held.digest, set(held.scopes)) == (wanted.version, wanted.digest, set(wanted.scopes))


def body_digest(body: bytes) -> bytes:
    """The name of a body on the wire: its SHA-256 (32 bytes)."""
    return hashlib.sha256(body).digest()
