"""What to keep warm: each declared prefix, assembled as every request that names it will begin (WRM-02).

Pure. Targets are bound to the fence they were resolved under: a later plan makes new ones, and the old ones are void.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kvgrove_daemon.namespaces import HostedNamespace
from kvgrove_prompt.assembly import assemble_prefix
from kvgrove_prompt.layout import DocumentBody, PrefixBody
from kvgrove_prompt.tokenizer import PromptTokenizer
from kvgrove_protocol.chain import TOKEN_BYTES, Span
from kvgrove_protocol.control import DocumentPlan, PrefixPlan
from kvgrove_protocol.fence import Fence
from kvgrove_protocol.identity import Caller

NOBODY = Caller()
"""Asks for declared text only: no caller's realm is in its keys."""

Served = tuple[str, bytes]
"""Namespace UID, and the generation that serves it."""


@dataclass(frozen=True)
class WarmTarget:
    """Whole blocks to compute. Of declared text, whose keys are those of every caller, unless it has a ``caller``."""

    namespace_uid: str
    generation: bytes
    fence: Fence
    prefix: str
    coming: bool
    """Whether it holds versions of documents that nobody may refer to yet."""
    tokens: bytes
    spans: list[Span]
    blocks: int
    """How many blocks ``tokens`` fill."""
    caller: Caller = NOBODY
    """Who asked it (`hot_chains`); nobody by default."""

    @property
    def served(self) -> Served:
        return self.namespace_uid, self.generation


def wanted_bodies(namespace: HostedNamespace) -> set[bytes]:
    """Digests of the texts that this namespace's warm set needs."""
    assemblies = _assemblies(namespace)
    return {digest for prefix, documents, _ in assemblies for digest in _needed(prefix, documents)}


def warm_targets(
    namespace: HostedNamespace, tokenizer: PromptTokenizer, block_size: int, texts: Mapping[bytes, str]
) -> list[WarmTarget]:
    """One target for each assembly whose texts are all here and that fills at least one block.

    ``namespace``: as one of its generations serves it.

    A prefix has two assemblies while a next version of one of its documents waits to be warm.
    """
    if namespace.realm is None:
        return []
    targets = []
    for prefix, documents, coming in _assemblies(namespace):
        if any(digest not in texts for digest in _needed(prefix, documents)):
            continue
        prompt = assemble_prefix(
            tokenizer,
            PrefixBody(name=prefix.name, text=texts[prefix.body]),
            [_document(document, texts[document.body]) for document in documents],
        )
        whole = prompt.count // block_size * block_size
        if whole:
            targets.append(
                WarmTarget(
                    namespace_uid=namespace.plan.uid,
                    generation=namespace.realm.generation,
                    fence=namespace.plan.fence,
                    prefix=prefix.name,
                    coming=coming,
                    tokens=prompt.tokens[: whole * TOKEN_BYTES],
                    spans=cut_spans(prompt.spans, whole),
                    blocks=whole // block_size,
                )
            )
    return targets


def _assemblies(namespace: HostedNamespace) -> Iterator[tuple[PrefixPlan, list[DocumentPlan], bool]]:
    """Prefix, its documents in order, and whether any of them is a coming version: of all that is to be kept warm."""
    next_versions = {document.name: document for document in namespace.plan.coming}
    for prefix in namespace.plan.prefixes:
        if prefix.name in namespace.plan.warm:
            documents = [namespace.documents[name] for name in prefix.documents if name in namespace.documents]
            yield prefix, documents, False
            if not next_versions.keys().isdisjoint(document.name for document in documents):
                yield prefix, [next_versions.get(document.name, document) for document in documents], True


def _needed(prefix: PrefixPlan, documents: Sequence[DocumentPlan]) -> list[bytes]:
    return [prefix.body, *(document.body for document in documents)]


def _document(document: DocumentPlan, text: str) -> DocumentBody:
    return DocumentBody(
        ref=document.reference,
        name=document.name,
        version=document.version,
        text=text,
    )


def cut_spans(spans: Sequence[Span], end: int) -> list[Span]:
    """``spans`` up to token ``end``."""
    return [
        Span(span.kind, span.start, min(span.end, end), name=span.name, document=span.document)
        for span in spans
        if span.start < end
    ]
