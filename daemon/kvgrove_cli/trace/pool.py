"""One node's cache with simulated bytes: keys, index, leases and eviction are the real ones.

Role: what `kvgrove trace replay` and `kvgrove simulate` serve requests with. Invariants: a block counts as a hit only
if it and all before it are resident when the request is served; outputs are not cached; the pool holds exactly the
given number of blocks. Must not know: trace files, time, other nodes.

A block of 512 tokens is stood for by two tokens that no other block has, so keys are hashed and tokens compared as for
a real prompt, at a fraction of the cost. One token more follows each prompt, since a node always computes the last one
itself: every block of the trace can be hit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from kvgrove_cli.trace.requests import BLOCK_TOKENS, Request
from kvgrove_daemon.cache.eviction import POLICIES
from kvgrove_daemon.cache.resident import ResidencySink
from kvgrove_daemon.cache.runs import RunAllocator
from kvgrove_daemon.cache.store import BlockStore, Chain, NoRoom
from kvgrove_protocol.chain import TOKEN_BYTES, block_keys

ROOT: Final = bytes(32)
MAX_BLOCKS: Final = 1 << 31
"""Ids that have a token of their own among the 32-bit ones."""
_NAMESPACE: Final = "trace"
_SIZE: Final = 2
_LAST_TOKEN: Final = np.array([2**32 - 1], dtype="<u4").tobytes()


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request as caches see it. The same for every node, so it is made once."""

    chain: Chain
    tokens: int
    """Of the real prompt."""


def prompt(request: Request, root: bytes = ROOT) -> Prompt:
    """``root``: what separates generations; the same blocks under another root are other blocks."""
    ids = np.zeros((len(request.blocks), _SIZE), dtype="<u4")
    ids[:, 0] = request.blocks
    tokens = ids.tobytes()
    chain = Chain(_NAMESPACE, root, tokens + _LAST_TOKEN, block_keys(root, tokens, block_size=_SIZE), _SIZE)
    return Prompt(chain, request.prompt_tokens)


class Pool:
    """Mutable. ``slots``: blocks it holds; ``eviction``: a name of `POLICIES`; ``sink`` is told of every change."""

    def __init__(self, slots: int, eviction: str, sink: ResidencySink | None = None) -> None:
        # One slot more than asked for: it holds the token behind the prompt while a request is served, and never stays.
        self.store = BlockStore(
            RunAllocator(slots + 1),
            block_size=_SIZE,
            block_bytes=BLOCK_TOKENS,
            policy=POLICIES[eviction](slots + 1),
            sink=sink,
        )
        self.cut = 0
        """Requests longer than the whole pool: only their first blocks are stored."""
        self._slots = slots

    def serve(self, prompt: Prompt) -> int:
        """Reused tokens of ``prompt``, whose blocks are resident afterwards, as many as the pool holds."""
        chain = prompt.chain
        if len(chain.keys) > self._slots:
            self.cut += 1
            kept = chain.tokens[: self._slots * _SIZE * TOKEN_BYTES]
            chain = Chain(chain.namespace, chain.root, kept + _LAST_TOKEN, chain.keys[: self._slots], _SIZE)
        match = self.store.match(chain)
        hit = min(match.blocks * BLOCK_TOKENS, prompt.tokens)
        build = self.store.begin(match)
        if isinstance(build, NoRoom):
            raise RuntimeError(f"{build.wanted} blocks found no room in an idle pool of {self._slots}")
        with build:
            build.commit(len(chain.keys), lambda: True)
        return hit
