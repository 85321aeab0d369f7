"""A small store, and the one way in which these tests make requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from kvgrove_daemon.cache.chains import KeyFunction
from kvgrove_daemon.cache.contributors import UNKNOWN_WRITER, Writer
from kvgrove_daemon.cache.eviction import POLICIES
from kvgrove_daemon.cache.resident import timeless
from kvgrove_daemon.cache.runs import RunAllocator
from kvgrove_daemon.cache.store import BlockStore, Build, Chain, NoRoom, StoreLimits
from kvgrove_protocol.chain import block_keys
from kvgrove_protocol.identity import Contributor

BLOCK = 4
ROOT = b"r" * 32


def always() -> bool:
    return True


def tokens(values: Iterable[int]) -> bytes:
    return np.fromiter(values, dtype="<u4").tobytes()


def run_of(start: int, count: int) -> bytes:
    """``count`` tokens that belong together: ``start``, ``start + 1``, ..."""
    return tokens(range(start, start + count))


class Clock:
    """Seconds that only a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def caller(tenant: int, user: int | None = None) -> Contributor:
    return Contributor(bytes([tenant]) * 16, bytes([user]) * 16 if user is not None else b"")


class Events:
    """A sink that keeps a router's view: which keys are READY, by events alone."""

    def __init__(self) -> None:
        self.ready: set[bytes] = set()
        self.stored: list[bytes] = []
        self.removed: list[bytes] = []

    def on_stored(self, keys: Sequence[bytes]) -> None:
        assert self.ready.isdisjoint(keys)
        self.ready.update(keys)
        self.stored += keys

    def on_removed(self, keys: Sequence[bytes]) -> None:
        assert self.ready.issuperset(keys)
        self.ready.difference_update(keys)
        self.removed += keys


def make_store(
    slots: int,
    *,
    sink: Events | None = None,
    key_function: KeyFunction = block_keys,
    limits: StoreLimits | None = None,
    block: int = BLOCK,
    policy: str = "lru",
    clock: Callable[[], float] = timeless,
) -> BlockStore:
    return BlockStore(
        RunAllocator(slots),
        block_size=block,
        block_bytes=100,
        sink=sink,
        key_function=key_function,
        limits=limits,
        clock=clock,
        policy=POLICIES[policy](slots),
    )


def chain_of(
    store: BlockStore,
    raw: bytes,
    *,
    root: bytes = ROOT,
    folds: Mapping[int, bytes] | None = None,
    namespace: str = "ns",
    documents: Mapping[int, tuple[str, ...]] | None = None,
    writer: Writer = UNKNOWN_WRITER,
) -> Chain:
    return store.keys(root, raw, folds or {}, namespace=namespace, documents=documents or {}, writer=writer)


def begin(store: BlockStore, chain: Chain) -> Build:
    build = store.begin(store.match(chain))
    assert isinstance(build, Build), build
    return build


def serve(store: BlockStore, chain: Chain) -> int:
    """One request from match to finish with everything stored; answers the tokens it reused."""
    match = store.match(chain)
    reused = match.reused_tokens
    build = store.begin(match)
    assert not isinstance(build, NoRoom), build
    with build:
        build.commit(len(chain.keys), always)
    return reused


def reuse(store: BlockStore, chain: Chain) -> int:
    """How many tokens of ``chain`` would be reused now."""
    with store.match(chain) as match:
        return match.reused_tokens
