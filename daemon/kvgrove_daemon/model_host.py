"""Loading a model: weights, tokenizer, digests, and the pool it shares with every other model of its layout.

Loading takes seconds and runs in a thread of its own. What the node computed here is reported; the planner compares the
reports of all nodes and only then names the generation (DESIGN section 4).
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from kvgrove_daemon.cache.arena import Arena
from kvgrove_daemon.cache.eviction import CostAware
from kvgrove_daemon.cache.layout import KVLayout, as_dtype
from kvgrove_daemon.cache.runs import RunAllocator
from kvgrove_daemon.cache.store import BlockStore, StoreLimits
from kvgrove_daemon.cache.tiers.codec import as_codec, require_codec
from kvgrove_daemon.engine.digests import weights_digest
from kvgrove_daemon.engine.model_source import open_model
from kvgrove_daemon.engine.runner import ModelRunner
from kvgrove_daemon.quotas import TierQuotas
from kvgrove_daemon.residency import LoggedResidency
from kvgrove_link.clock import boottime
from kvgrove_prompt.bundle import bundle_digest, chat_template_digest, pack, tokenizer_digest
from kvgrove_prompt.tokenizer import PromptTokenizer
from kvgrove_protocol.control import ModelPlan
from kvgrove_protocol.errors import Terminal
from kvgrove_protocol.events import HOST
from kvgrove_protocol.identity import GenerationInputs, LayoutFingerprint, generation

DEFAULT_POOL_BYTES = 1 << 30
LAYOUT_ABI = "kvgrove/layer-major/1"


class PoolTooSmall(Terminal):
    """The pool has fewer blocks than one prompt of the model may need."""

    code = "pool_too_small"


@dataclass(frozen=True)
class NodePool:
    """Memory and cache of one KV layout."""

    arena: Arena
    store: BlockStore
    quotas: TierQuotas


@dataclass
class NodePools:
    """The pools of a node by layout: models of equal layout share one, since the generation is in every key."""

    make_arena: Callable[[KVLayout, int], Arena]
    sink: LoggedResidency
    clock: Callable[[], float] = boottime
    """Seconds that go on while the machine sleeps: times to live count by it."""
    _pools: dict[KVLayout, NodePool] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def of(self, layout: KVLayout, pool_bytes: int) -> NodePool:
        """The pool of ``layout``, made with ``pool_bytes`` by the first model that asks. Raises PoolNoRoom."""
        with self._lock:
            if layout not in self._pools:
                slots = layout.slots_within(pool_bytes)
                if slots < 2:
                    raise PoolTooSmall(
                        f"spec.pool: {pool_bytes} bytes hold {slots} blocks of {layout.block_bytes} bytes; "
                        "give it room for the longest prompt at least",
                        field="spec.pool",
                    )
                arena = self.make_arena(layout, slots)
                store = BlockStore(
                    RunAllocator(slots),
                    block_size=layout.block_size,
                    block_bytes=layout.block_bytes,
                    sink=self.sink,
                    policy=CostAware(slots),
                    clock=self.clock,
                    limits=StoreLimits(low_free=slots // 20, high_free=slots // 10),
                )
                quotas = TierQuotas(HOST, store.resident, layout.block_bytes)
                self._pools[layout] = NodePool(arena, store, quotas)
            return self._pools[layout]

    def all(self) -> list[NodePool]:
        with self._lock:
            return list(self._pools.values())

    def close(self) -> None:
        for pool in self.all():
            pool.arena.close()


@dataclass(frozen=True)
class HostedModel:
    """A model that this node can run, and what it is."""

    name: str
    runner: ModelRunner
    pool: NodePool
    tokenizer: PromptTokenizer
    bundle: bytes
    bundle_digest: bytes
    inputs: GenerationInputs
    fingerprint: bytes
    max_model_len: int
    max_batch: int
    prefill_chunk: int

    @property
    def generation(self) -> bytes:
        """What this node would call the generation; requests use it only once the plan names the same."""
        return generation(self.inputs)


def load_model(
    plan: ModelPlan, chat_template: str | None, pools: NodePools, digest_cache: Path, *, default_dtype: str
) -> HostedModel:
    """Load ``plan``. Raises a KvgroveError that names the field and the cure.

    ``chat_template``: overrides the model's own. ``default_dtype``: what ``auto`` means on this device.
    """
    source = open_model(Path(plan.path))
    dtype = default_dtype if plan.kv_dtype == "auto" else plan.kv_dtype
    layout = source.shape.layout(as_dtype(dtype), plan.block_size)
    codec = as_codec(plan.kv_codec)
    require_codec(layout, codec)
    bundle = pack(Path(plan.tokenizer_path or plan.path), chat_template)
    tokenizer = PromptTokenizer.from_bundle(bundle)
    inputs = GenerationInputs(
        weights=weights_digest(source, digest_cache),
        tokenizer=tokenizer_digest(bundle),
        chat_template=chat_template_digest(bundle),
        kv_dtype=layout.dtype,
        block_size=layout.block_size,
        rope=source.shape.rope,
        attention=source.shape.attention,
        kv_codec=codec,
    )
    pool = pools.of(layout, plan.pool_bytes.get("host", DEFAULT_POOL_BYTES))
    fingerprint = LayoutFingerprint(
        abi=LAYOUT_ABI,
        num_layers=layout.num_layers,
        num_kv_heads=layout.num_kv_heads,
        head_dim=layout.head_dim,
        dtype=layout.dtype,
        block_size=layout.block_size,
        kv_codec=codec,
    )
    longest = pool.arena.num_slots * layout.block_size
    return HostedModel(
        name=plan.name,
        runner=ModelRunner.load(source, pool.arena),
        pool=pool,
        tokenizer=tokenizer,
        bundle=bundle,
        bundle_digest=bundle_digest(bundle),
        inputs=inputs,
        fingerprint=fingerprint.digest(),
        max_model_len=min(plan.max_model_len or source.shape.max_context, source.shape.max_context, longest),
        max_batch=plan.max_batch,
        prefill_chunk=plan.prefill_chunk,
    )
