"""The shape of one model's KV in the pool.

Role: the one place where "how large is a block" and "where does token t of layer l lie" are computed.
Invariant: K and V of one layer are equally shaped, and every layer is shaped like every other; models that are
not are refused before a layout is made. Must not know: torch, memory, models, sequences.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, cast, get_args

DType = Literal["float32", "bfloat16", "float16"]

ITEM_BYTES: Final = MappingProxyType({"float32": 4, "bfloat16": 2, "float16": 2})


@dataclass(frozen=True, slots=True)
class KVLayout:
    """The geometry of a pool: logical array ``[layer][K, V][slot * block_size + t][kv_head][head_dim]``.

    Layer-major, so that consecutive slots are, per layer, one strided view of consecutive tokens: attention
    reads them where they lie. ``block_size`` counts tokens.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: DType
    block_size: int = 32

    def __post_init__(self) -> None:
        for name in ("num_layers", "num_kv_heads", "head_dim", "block_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.dtype not in ITEM_BYTES:
            raise ValueError(f"dtype must be one of {', '.join(ITEM_BYTES)}, not {self.dtype!r}")

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES[self.dtype]

    @property
    def token_bytes(self) -> int:
        """Bytes of K and V of one token over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.item_bytes

    @property
    def block_bytes(self) -> int:
        return self.block_size * self.token_bytes

    def pool_shape(self, num_slots: int) -> tuple[int, int, int, int, int]:
        return (self.num_layers, 2, num_slots * self.block_size, self.num_kv_heads, self.head_dim)

    def pool_bytes(self, num_slots: int) -> int:
        return num_slots * self.block_bytes

    def slots_within(self, budget_bytes: int) -> int:
        """How many whole blocks fit into ``budget_bytes``."""
        return budget_bytes // self.block_bytes

    def blocks_for(self, num_tokens: int) -> int:
        """How many slots hold ``num_tokens`` tokens, the last perhaps only in part."""
        return -(-num_tokens // self.block_size)


def as_dtype(name: str) -> DType:
    """Narrow a dtype's name; raises ValueError for one the pool cannot store."""
    if name not in get_args(DType):
        raise ValueError(f"dtype must be one of {', '.join(ITEM_BYTES)}, not {name!r}")
    return cast(DType, name)
