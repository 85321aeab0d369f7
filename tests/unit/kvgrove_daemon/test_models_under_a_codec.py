"""One set of files loaded under two codecs: two generations, two layouts, one pool (I1)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pools_rig import node_pools
from tiny_models import cached_tiny_model

from kvgrove_daemon.cache.tiers.codec import CodecUnsupported
from kvgrove_daemon.model_host import HostedModel, load_model
from kvgrove_daemon.model_loading import identity
from kvgrove_daemon.node_pools import NodePools
from kvgrove_protocol.control import ModelPlan
from kvgrove_protocol.identity import changed_fields


@pytest.fixture
def pools(tmp_path: Path) -> Iterator[NodePools]:
    with node_pools(tmp_path) as pools:
        yield pools


def plan(codec: str) -> ModelPlan:
    path = str(cached_tiny_model("llama"))
    return ModelPlan(name="m", path=path, kv_codec=codec, pool_bytes={"host": 1 << 20})


def test_i1_a_codec_gives_the_model_another_generation_and_its_extents_another_layout(
    pools: NodePools, tmp_path: Path
) -> None:
    def load(codec: str) -> HostedModel:
        return load_model(plan(codec), None, pools, tmp_path, default_dtype="float32")

    exact, lossy = load("none"), load("int8")
    assert changed_fields(exact.inputs, lossy.inputs) == ("kv_codec",)
    assert exact.generation != lossy.generation
    assert exact.fingerprint != lossy.fingerprint
    assert exact.pool is lossy.pool, "in the pool itself both are exact: one memory, keys apart"
    assert identity(plan("none")) != identity(plan("int8")), "a node loads it anew"


def test_a_codec_that_nobody_knows_is_refused_by_field_and_cure(pools: NodePools, tmp_path: Path) -> None:
    with pytest.raises(CodecUnsupported, match=r"spec\.kvFormat\.codec: must be one of none"):
        load_model(plan("int2"), None, pools, tmp_path, default_dtype="float32")
