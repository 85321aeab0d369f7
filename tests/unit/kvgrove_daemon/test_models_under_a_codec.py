"""One set of files loaded under two codecs: two generations, two layouts, one pool (I1)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_models import cached_tiny_model

from kvgrove_daemon.cache.arena import Arena, SharedMemoryArena
from kvgrove_daemon.cache.layout import KVLayout
from kvgrove_daemon.cache.segments import segment_name
from kvgrove_daemon.cache.tiers.codec import CodecUnsupported
from kvgrove_daemon.cache.tiers.workers import TierWorkers
from kvgrove_daemon.event_log import EventLog
from kvgrove_daemon.model_host import HostedModel, load_model
from kvgrove_daemon.model_loading import identity
from kvgrove_daemon.node_pools import NodePools, Surface
from kvgrove_protocol.control import ModelPlan
from kvgrove_protocol.events import HOST
from kvgrove_protocol.identity import changed_fields


def make_arena(_tier: str, layout: KVLayout, slots: int) -> Arena:
    return SharedMemoryArena(layout, slots, segment_name(f"codec-models-{os.getpid()}", "0", 0))


@pytest.fixture
def pools(tmp_path: Path) -> Iterator[NodePools]:
    workers = TierWorkers(lambda: None)
    surface = Surface(
        top=HOST,
        make_arena=make_arena,
        disk_dir=tmp_path / "disk",
        workers=workers,
        fresh=lambda _uid, _root: True,
        clock=lambda: 0.0,
        log=EventLog("0"),
    )
    pools = NodePools(surface)
    yield pools
    workers.close()
    pools.close()


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
