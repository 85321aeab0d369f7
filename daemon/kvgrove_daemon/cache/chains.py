"""Chains of keys, and a bounded memory of those computed lately.

Role: give a request the keys of its full blocks for the price of its *new* tokens. Invariants: remembered keys are used
only for blocks whose root, folds and tokens were compared and found equal, so they are the keys that hashing would
give (I1, I9); bounded in bytes, least recently used chain first (I11).
Must not know: which blocks are resident. What is remembered here saves hashing, never proves a hit.

A chain is found again by *probes*: hashes of (root and folds so far, position, tokens of the block at that position) at
positions that grow by a fifth. The deepest probe that answers names a candidate, one comparison of tokens says how far
it agrees. A turn, a branch or a retry of a known conversation thus needs no hint from whoever sends it, and a chain of
another realm is never even compared (ISO-03).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from kvgrove_daemon.cache.contributors import UNKNOWN_WRITER, Writer
from kvgrove_protocol.chain import TOKEN_BYTES, Span, SpanKind, folds

NO_DOCUMENTS: Final[Mapping[int, tuple[str, ...]]] = {}
_KEY_BYTES = 88  # a 32-byte ``bytes`` object and the reference to it
_PROBE_BYTES = 160
_MAX_CANDIDATES = 3  # comparisons per request


class KeyFunction(Protocol):
    """`kvgrove_protocol.chain.block_keys`, or in tests one that collides."""

    def __call__(
        self,
        parent: bytes,
        tokens: bytes | memoryview,
        block_folds: Mapping[int, bytes] = ...,
        *,
        block_size: int = ...,
        first_block: int = ...,
    ) -> list[bytes]: ...


class Marks(NamedTuple):
    """What of a prompt's spans goes into its chain."""

    folds: dict[int, bytes]
    documents: dict[int, tuple[str, ...]]
    """Block -> labels of the documents that its fold stands for."""
    private_from: int
    """The first block that holds a token which is not declared text, generated ones included."""


def marks(spans: Sequence[Span], private_realm: bytes, block_size: int) -> Marks:
    """Folds and document labels of a prompt and of whatever is generated after it.

    What a model says is the caller's, so generated tokens count as private: without that, an answer to a prompt of
    declared text alone would be stored where every caller meets it (I2). ``spans`` tile the prompt.
    """
    end = spans[-1].end if spans else 0
    answer = Span(kind=SpanKind.PRIVATE, start=end, end=end + 1)
    documents: dict[int, tuple[str, ...]] = {}
    for span in spans:
        if span.document is not None and span.start < span.end:
            block = span.start // block_size
            documents[block] = (*documents.get(block, ()), span.document.label)
    whole = [*spans, answer]
    private_from = next(span.start for span in whole if span.kind is SpanKind.PRIVATE and span.start < span.end)
    return Marks(folds(whole, private_realm, block_size), documents, private_from // block_size)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Chain:
    """A prompt as the cache sees it. Immutable, and ``keys`` must not be changed by anyone. No ``repr``: see I12."""

    namespace: str
    root: bytes
    tokens: bytes
    """Little-endian uint32, the partial last block included."""
    keys: list[bytes]
    """Of its full blocks."""
    block_size: int
    folds: Mapping[int, bytes] = field(default_factory=dict)
    documents: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    writer: Writer = UNKNOWN_WRITER
    erasures: int = 0
    """How many erasures its store had seen when it was made (`subjects.Erasures`)."""

    @property
    def token_count(self) -> int:
        return len(self.tokens) // TOKEN_BYTES

    def array(self, first: int, stop: int) -> npt.NDArray[np.uint32]:
        """Tokens of the full blocks ``[first, stop)``: a view of the bytes."""
        size = self.block_size
        return np.frombuffer(self.tokens, "<u4", (stop - first) * size, first * size * TOKEN_BYTES)


@dataclass(slots=True, eq=False, repr=False)
class _Known:
    chain: Chain
    probes: list[int]
    cost: int


class KnownChains:
    """Chains by probe, least recently used first out, at most ``limit_bytes`` of them. Mutable, single-threaded."""

    def __init__(self, limit_bytes: int, block_size: int, key_function: KeyFunction) -> None:
        self._limit = limit_bytes
        self._block_size = block_size
        self._key_function = key_function
        self._known: OrderedDict[_Known, None] = OrderedDict()
        self._by_probe: dict[int, _Known] = {}
        self.bytes = 0
        self.hashed_blocks = 0
        self.recalled_blocks = 0

    def __len__(self) -> int:
        return len(self._known)

    def chain(
        self,
        namespace: str,
        root: bytes,
        tokens: bytes,
        block_folds: Mapping[int, bytes],
        documents: Mapping[int, tuple[str, ...]] = NO_DOCUMENTS,
        *,
        writer: Writer = UNKNOWN_WRITER,
        erasures: int = 0,
    ) -> Chain:
        """The chain of ``tokens``, and remember it. Hashes only what no remembered chain agrees with."""
        width = self._block_size * TOKEN_BYTES
        count = len(tokens) // width
        probes = list(_probes(root, tokens, block_folds, count, width))
        known, shared = self._longest(root, tokens, block_folds, count, probes)
        keys = known.chain.keys[:shared] if known is not None else []
        if shared < count:
            rest = memoryview(tokens)[shared * width : count * width]
            parent = keys[-1] if keys else root
            keys += self._key_function(parent, rest, block_folds, block_size=self._block_size, first_block=shared)
        self.hashed_blocks += count - shared
        self.recalled_blocks += shared
        chain = Chain(namespace, root, tokens, keys, self._block_size, block_folds, documents, writer, erasures)
        if known is not None and shared == count:
            self._known.move_to_end(known)
        else:
            self._remember(chain, probes, known if known is not None and shared == len(known.chain.keys) else None)
        return chain

    def remember(self, chain: Chain) -> None:
        """Keep a chain whose keys were computed elsewhere: a prompt with what was generated after it."""
        width = self._block_size * TOKEN_BYTES
        count = len(chain.keys)
        probes = list(_probes(chain.root, chain.tokens, chain.folds, count, width))
        known, shared = self._longest(chain.root, chain.tokens, chain.folds, count, probes)
        if known is None or shared < count:
            self._remember(chain, probes, known if known is not None and shared == len(known.chain.keys) else None)

    def forget(self, unwanted: Callable[[Chain], bool]) -> int:
        """Drop all chains that ``unwanted`` names; answers how many."""
        gone = [known for known in self._known if unwanted(known.chain)]
        for known in gone:
            self._drop(known)
        return len(gone)

    def _longest(
        self, root: bytes, tokens: bytes, block_folds: Mapping[int, bytes], count: int, probes: Sequence[int]
    ) -> tuple[_Known | None, int]:
        best: _Known | None = None
        shared = tried = 0
        for at in range(len(probes) - 1, -1, -1):
            candidate = self._by_probe.get(probes[at])
            if candidate is None or candidate is best:
                continue
            agreed = _agreement(candidate.chain, root, tokens, block_folds, count)
            if agreed > shared:
                best, shared = candidate, agreed
            tried += 1
            if shared > _POSITIONS[at] or tried == _MAX_CANDIDATES:
                break
        return best, shared

    def _remember(self, chain: Chain, probes: list[int], superseded: _Known | None) -> None:
        cost = len(chain.tokens) + _KEY_BYTES * len(chain.keys) + _PROBE_BYTES * len(probes)
        if not probes or cost > self._limit:
            return  # and a beginning of it that is known stays so
        known = _Known(chain, probes, cost)
        self._known[known] = None
        self.bytes += cost
        for probe in probes:
            self._by_probe[probe] = known
        if superseded is not None:
            self._drop(superseded)
        while self.bytes > self._limit:
            self._drop(next(iter(self._known)))

    def _drop(self, known: _Known) -> None:
        del self._known[known]
        self.bytes -= known.cost
        for probe in known.probes:
            if self._by_probe.get(probe) is known:
                del self._by_probe[probe]


def _growing(stop: int) -> Iterator[int]:
    position = 0
    while position < stop:
        yield position
        position = max(position + 1, position * 6 // 5)


_POSITIONS = tuple(_growing(1 << 24))
"""Blocks that are probed; the last is far beyond the longest prompt that a frame holds."""


def _probes(root: bytes, tokens: bytes, block_folds: Mapping[int, bytes], count: int, width: int) -> Iterator[int]:
    """Probes of the first ``count`` blocks at `_POSITIONS`, in their order. Hints only: each find is compared."""
    contexts = [hash(root)]
    starts = sorted(block_folds)
    for block in starts:
        contexts.append(hash((contexts[-1], block, block_folds[block])))
    for position in _POSITIONS[: bisect_left(_POSITIONS, count)]:
        context = contexts[bisect_right(starts, position)]
        yield hash((context, position, tokens[position * width : (position + 1) * width]))


def _agreement(chain: Chain, root: bytes, tokens: bytes, block_folds: Mapping[int, bytes], count: int) -> int:
    """Blocks from the start on in which ``chain`` and the asker's root, folds and tokens are equal."""
    if chain.root != root:
        return 0
    limit = min(count, len(chain.keys), _first_difference(chain.folds, block_folds))
    values = limit * chain.block_size
    if tokens.startswith(memoryview(chain.tokens)[: values * TOKEN_BYTES]):  # one memcmp: most often it is a next turn
        return limit
    same = np.frombuffer(tokens, "<u4", values) == np.frombuffer(chain.tokens, "<u4", values)
    return int(same.argmin()) // chain.block_size


def _first_difference(one: Mapping[int, bytes], other: Mapping[int, bytes]) -> int:
    differing: Iterable[int] = (
        block for block in one.keys() | other.keys() if one.get(block, b"") != other.get(block, b"")
    )
    return min(differing, default=1 << 62)
