"""What to keep warm: each declared prefix, assembled as every request that names it will begin (WRM-02).

Pure. Targets are bound to the fence they were resolved under: a later plan makes new ones, and the old ones are void.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kvgrove_daemon.namespaces import HostedNamespace
from kvgrove_prompt.assembly import assemble_prefix
from kvgrove_prompt.layout import DocumentBody, PrefixBody
from kvgrove_prompt.tokenizer import PromptTokenizer
from kvgrove_protocol.chain import TOKEN_BYTES, DocumentRef, Span
from kvgrove_protocol.control import DocumentPlan
from kvgrove_protocol.fence import Fence


@dataclass(frozen=True)
class WarmTarget:
    """Whole blocks of declared text. Holds no private token, so its keys are those of every caller."""

    namespace_uid: str
    generation: bytes
    fence: Fence
    prefix: str
    tokens: bytes
    spans: list[Span]
    blocks: int
    """How many blocks ``tokens`` fill."""


def wanted_bodies(namespace: HostedNamespace) -> set[bytes]:
    """Digests of the texts that this namespace's warm set needs."""
    plan = namespace.plan
    bodies: set[bytes] = set()
    for prefix in plan.prefixes:
        if prefix.name in plan.warm:
            bodies.add(prefix.body)
            bodies.update(namespace.documents[name].body for name in prefix.documents if name in namespace.documents)
    return bodies


def warm_targets(
    namespace: HostedNamespace, tokenizer: PromptTokenizer, block_size: int, bodies: Mapping[bytes, bytes]
) -> list[WarmTarget]:
    """One target for each warm prefix whose texts are all in ``bodies`` and that fills at least one block."""
    if namespace.realm is None:
        return []
    targets = []
    for prefix in namespace.plan.prefixes:
        documents = [namespace.documents[name] for name in prefix.documents if name in namespace.documents]
        needed = [prefix.body, *(document.body for document in documents)]
        if prefix.name not in namespace.plan.warm or any(digest not in bodies for digest in needed):
            continue
        prompt = assemble_prefix(
            tokenizer,
            PrefixBody(name=prefix.name, text=bodies[prefix.body].decode()),
            [_document(document, bodies[document.body]) for document in documents],
        )
        whole = prompt.count // block_size * block_size
        if whole:
            targets.append(
                WarmTarget(
                    namespace_uid=namespace.plan.uid,
                    generation=namespace.realm.generation,
                    fence=namespace.plan.fence,
                    prefix=prefix.name,
                    tokens=prompt.tokens[: whole * TOKEN_BYTES],
                    spans=_cut(prompt.spans, whole),
                    blocks=whole // block_size,
                )
            )
    return targets


def _document(document: DocumentPlan, body: bytes) -> DocumentBody:
    return DocumentBody(
        ref=DocumentRef(document.name, document.body, document.epoch),
        name=document.name,
        version=document.version,
        text=body.decode(),
    )


def _cut(spans: list[Span], end: int) -> list[Span]:
    return [
        Span(span.kind, span.start, min(span.end, end), name=span.name, document=span.document)
        for span in spans
        if span.start < end
    ]
