"""Block keys: ``k_0 = shared realm``, ``k_i = SHA-256(k_{i-1} || fold_i || tokens_i as little-endian uint32)``.

Only full blocks have keys. A *fold* is mixed in where something other than tokens begins to matter: the private realm
at the first block that holds a token outside declared prefixes and documents, a document's (id, digest, epoch) at the
first block that overlaps it (I2, I3). So declared text is shared under every isolation level, private text never is,
and a changed, withdrawn or re-added document can never meet its old blocks.

The same functions serve router, daemon, warm-up and connector (I9); ``vectors/identity-v1.json`` pins their results.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum

import msgspec

from kvgrove_protocol.canonical import Canonical, encode
from kvgrove_protocol.errors import Malformed

TOKEN_BYTES = 4
DEFAULT_BLOCK_SIZE = 32

NO_FOLDS: Mapping[int, bytes] = {}


class SpanKind(IntEnum):
    """Where tokens of a prompt come from."""

    TEMPLATE = 0
    """The chat template's own scaffolding: the same for every caller."""
    PREFIX = 1
    """A declared stable prefix of the namespace."""
    DOCUMENT = 2
    """A referenced document."""
    PRIVATE = 3
    """Anything a caller said, or that only some callers may meet."""


class DocumentRef(msgspec.Struct, frozen=True):
    """One version of a document. ``epoch`` is minted anew at each change, so v1 -> v2 -> v1 gives three references."""

    id: str
    digest: bytes
    epoch: int

    @property
    def label(self) -> str:
        """Names this version wherever blocks are reclaimed by document: ``<id>@<epoch>``."""
        return f"{self.id}@{self.epoch}"


def names_document(selector: str, label: str) -> bool:
    """Whether ``selector``, a document's id (all its versions) or the label of one version, means ``label``."""
    return selector == label or selector == label.rpartition("@")[0]


class Span(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tokens ``start`` (inclusive) to ``end`` (exclusive) of a prompt, and where they come from."""

    kind: SpanKind
    start: int
    end: int
    name: str = ""
    """Prefix name, or empty."""
    document: DocumentRef | None = None


def check_spans(spans: Sequence[Span], token_count: int) -> None:
    """Raise Malformed unless ``spans`` tile ``[0, token_count)`` in order and each document span has its reference."""
    position = 0
    for index, span in enumerate(spans):
        if span.start != position or span.end < span.start:
            raise Malformed(f"spans[{index}]", f"covers {span.start}..{span.end}, expected to start at {position}")
        if (span.kind is SpanKind.DOCUMENT) != (span.document is not None):
            raise Malformed(f"spans[{index}].document", "is required for document spans and for no others")
        position = span.end
    if position != token_count:
        raise Malformed("spans", f"cover {position} of {token_count} tokens")


def folds(spans: Iterable[Span], private_realm: bytes, block_size: int) -> dict[int, bytes]:
    """Block index -> fold, for the blocks that have one. ``spans`` tile the prompt (see `check_spans`)."""
    parts: dict[int, list[Canonical]] = {}
    private_seen = False
    for span in spans:
        if span.start == span.end:
            continue
        block = span.start // block_size
        if span.document is not None:
            reference = span.document
            parts.setdefault(block, []).append(["document", reference.id, reference.digest, reference.epoch])
        elif span.kind is SpanKind.PRIVATE and not private_seen:
            private_seen = True
            parts.setdefault(block, []).append(["private", private_realm])
    return {block: encode(entries) for block, entries in parts.items()}


def block_keys(
    parent: bytes,
    tokens: bytes | memoryview,
    block_folds: Mapping[int, bytes] = NO_FOLDS,
    *,
    block_size: int = DEFAULT_BLOCK_SIZE,
    first_block: int = 0,
) -> list[bytes]:
    """Keys (32 bytes each) of the full blocks of ``tokens`` that follow ``parent``.

    ``tokens``: little-endian uint32 of the blocks from ``first_block`` on; a partial last block gets no key.
    ``parent``: the shared realm for ``first_block`` 0, else the key of block ``first_block - 1``.
    ``block_folds``: by absolute block index, see `folds`.
    """
    width = block_size * TOKEN_BYTES
    count = len(tokens) // width
    sha256 = hashlib.sha256
    view = memoryview(tokens)
    keys: list[bytes] = []
    append = keys.append
    key = parent
    if any(first_block <= block < first_block + count for block in block_folds):
        for index in range(count):
            fold = block_folds.get(first_block + index, b"")
            key = sha256(b"".join((key, fold, view[index * width : (index + 1) * width]))).digest()
            append(key)
        return keys
    raw = bytes(view[: count * width])  # slices of bytes concatenate faster than views
    for start in range(0, count * width, width):
        key = sha256(key + raw[start : start + width]).digest()
        append(key)
    return keys
