"""Loading a model: weights, tokenizer, digests, and the pool it shares with every other model of its layout.

Loading takes seconds and runs in a thread of its own. What the node computed here is reported; the planner compares the
reports of all nodes and only then names the generation (DESIGN section 4).
"""

from dataclasses import dataclass
from pathlib import Path

from kvgrove_daemon.cache.layout import as_dtype
from kvgrove_daemon.cache.tiers.codec import as_codec, require_codec
from kvgrove_daemon.engine.adapters import adapters_digest, open_adapters
from kvgrove_daemon.engine.digests import weights_digest
from kvgrove_daemon.engine.model_source import open_model
from kvgrove_daemon.engine.runner import ModelRunner
from kvgrove_daemon.node_pools import NodePool, NodePools, fingerprint_of
from kvgrove_prompt.bundle import bundle_digest, chat_template_digest, pack, tokenizer_digest
from kvgrove_prompt.template import Renderer
from kvgrove_prompt.tokenizer import PromptTokenizer
from kvgrove_protocol.control import ModelPlan
from kvgrove_protocol.identity import GenerationInputs, generation


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
    adapters: dict[str, str]
    """Name -> digest of what is merged into the weights."""
    fingerprint: bytes
    max_model_len: int
    max_batch: int
    prefill_chunk: int

    @property
    def generation(self) -> bytes:
        """What this node would call the generation; requests use it only once the plan names the same."""
        return generation(self.inputs)


def load_model(
    plan: ModelPlan,
    chat_template: str | None,
    pools: NodePools,
    digest_cache: Path,
    *,
    default_dtype: str,
    renderer: Renderer | None = None,
) -> HostedModel:
    """Load ``plan``. Raises a KvgroveError that names the field and the cure.

    ``chat_template``: overrides the model's own. ``default_dtype``: what ``auto`` means on this device.
    ``renderer``: where chat templates, which are other people's code, are rendered; None: here.
    """
    source = open_model(Path(plan.path))
    adapters = open_adapters(plan.adapters, digest_cache)
    dtype = default_dtype if plan.kv_dtype == "auto" else plan.kv_dtype
    layout = source.shape.layout(as_dtype(dtype), plan.block_size)
    codec = as_codec(plan.kv_codec)
    require_codec(layout, codec)
    bundle = pack(Path(plan.tokenizer_path or plan.path), chat_template)
    tokenizer = PromptTokenizer.from_bundle(bundle, renderer=renderer)
    inputs = GenerationInputs(
        weights=weights_digest(source, digest_cache),
        tokenizer=tokenizer_digest(bundle),
        chat_template=chat_template_digest(bundle),
        adapter=adapters_digest(adapters),
        kv_dtype=layout.dtype,
        block_size=layout.block_size,
        rope=source.shape.rope,
        attention=source.shape.attention,
        kv_codec=codec,
    )
    pool = pools.of(layout, codec, plan.pool_bytes)
    longest = pool.arena.num_slots * layout.block_size
    return HostedModel(
        name=plan.name,
        runner=ModelRunner.load(source, pool.arena, adapters),
        pool=pool,
        tokenizer=tokenizer,
        bundle=bundle,
        bundle_digest=bundle_digest(bundle),
        inputs=inputs,
        adapters={adapter.name: adapter.digest for adapter in adapters},
        fingerprint=fingerprint_of(layout, codec),
        max_model_len=min(plan.max_model_len or source.shape.max_context, source.shape.max_context, longest),
        max_batch=plan.max_batch,
        prefill_chunk=plan.prefill_chunk,
    )
