"""Where the bytes of block ``slot`` lie in a pool.

Role: the one place of the package that knows the pool's shape, ``[layer][K, V][slot * block_size + t][head][dim]``.
A *plane* is one (layer, K or V); a *fragment* is one block's contiguous piece of one plane. Invariant: all pieces are
equally large. Must not know: dtypes beyond their size, ids, kernels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from kvgrove_kernels.arrays import Operand
from kvgrove_kernels.errors import BadArgument


@dataclass(frozen=True, slots=True)
class PoolShape:
    """Counts, and sizes in elements unless a name says bytes."""

    layers: int
    slots: int
    block_size: int
    heads: int
    head_dim: int
    item_bytes: int

    @classmethod
    def of(cls, pool: Operand, block_size: int) -> PoolShape:
        if block_size < 1:
            raise BadArgument("block_size", f"must be at least 1, not {block_size}")
        if len(pool.shape) != 5 or pool.shape[1] != 2:
            raise BadArgument(pool.name, f"shape must be (layers, 2, tokens, kv_heads, head_dim), not {pool.shape}")
        layers, _, tokens, heads, head_dim = pool.shape
        if tokens % block_size:
            raise BadArgument(pool.name, f"its {tokens} tokens are no whole number of blocks of {block_size}")
        return cls(layers, tokens // block_size, block_size, heads, head_dim, int(pool.array.dtype.itemsize))

    @property
    def planes(self) -> int:
        return self.layers * 2

    @property
    def fragment(self) -> int:
        return self.block_size * self.heads * self.head_dim

    @property
    def fragment_bytes(self) -> int:
        return self.fragment * self.item_bytes

    @property
    def block_bytes(self) -> int:
        return self.planes * self.fragment_bytes

    def run(self, blocks: int) -> tuple[int, int, int, int, int]:
        """The shape of ``blocks`` gathered blocks."""
        return (self.layers, 2, blocks * self.block_size, self.heads, self.head_dim)

    def mirror(self, slots: int) -> tuple[int, int, int, int, int, int]:
        """The shape of a block-major copy: block ``slot`` is one contiguous piece of ``block_bytes``."""
        return (slots, self.layers, 2, self.block_size, self.heads, self.head_dim)

    @property
    def in_bytes(self) -> PoolShape:
        """The same pool, counted in bytes."""
        return replace(self, head_dim=self.head_dim * self.item_bytes, item_bytes=1)

    def by_block(self, pool: Any) -> Any:
        """``pool`` as ``[layer][K, V][slot][token][head][element]``, a view."""
        return pool.reshape(self.layers, 2, -1, self.block_size, self.heads, self.head_dim)
