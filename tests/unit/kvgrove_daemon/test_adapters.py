"""Adapters: exact when merged, named by content, refused by name when they do not fit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from exactness import Check, Rig
from lora import quietly, save_adapter
from peft import PeftModel
from pools_rig import node_pools

from kvgrove_daemon.engine.adapters import Adapter, adapters_digest, merge, open_adapters
from kvgrove_daemon.engine.errors import DigestMismatch, MissingModel, UnsupportedModel
from kvgrove_daemon.engine.runner import ModelRunner
from kvgrove_daemon.model_host import load_model
from kvgrove_daemon.model_loading import identity
from kvgrove_protocol.control import AdapterPlan, ModelPlan
from kvgrove_protocol.events import HOST
from kvgrove_protocol.identity import changed_fields


@pytest.fixture(scope="module")
def base(tiny_model: Callable[[str], Path]) -> Path:
    return tiny_model("llama")


@pytest.fixture(scope="module")
def tone(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_adapter(base, tmp_path_factory.mktemp("adapters") / "tone")


@pytest.fixture(scope="module")
def german(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_adapter(base, tmp_path_factory.mktemp("adapters") / "german", seed=2, use_rslora=True)


@pytest.fixture
def rig(base: Path) -> Iterator[Rig]:
    rig = Rig(base, "float32")
    yield rig
    rig.close()


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., tuple[Adapter, ...]]:
    def opened(*paths: Path) -> tuple[Adapter, ...]:
        return open_adapters([AdapterPlan(name=f"a{at}", path=str(path)) for at, path in enumerate(paths)], tmp_path)

    return opened


def test_i1_reuse_under_a_merged_adapter_equals_a_cold_run_of_the_adapter_beside_its_base(
    rig: Rig, tone: Path, opened: Callable[..., tuple[Adapter, ...]]
) -> None:
    prompt = rig.prompt(70, reused=48)
    without = rig.cold(prompt)
    rig.plain = quietly(PeftModel.from_pretrained, rig.plain, str(tone)).eval()
    rig.runner = ModelRunner(merge(rig.model, opened(tone)), rig.arena)
    cold = rig.cold(prompt)
    check = Check.absolute(rig.reuse([prompt])[0], cold, 1e-4)
    assert check.passed, check.detail
    assert (cold - without).abs().max() > 0.1, "an adapter that changes nothing proves nothing"


def test_the_order_of_adapters_changes_no_bit(
    base: Path, tone: Path, german: Path, opened: Callable[..., tuple[Adapter, ...]]
) -> None:
    def weights(*paths: Path) -> dict[str, torch.Tensor]:
        rig = Rig(base, "float32")
        try:
            found = merge(rig.model, opened(*paths)).state_dict()
        finally:
            rig.close()
        return dict(found)

    one, other = weights(tone, german), weights(german, tone)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_cor_05_names_places_and_order_of_adapters_change_no_digest(
    tone: Path, german: Path, tmp_path: Path, opened: Callable[..., tuple[Adapter, ...]]
) -> None:
    moved = shutil.copytree(tone, tmp_path / "elsewhere")
    settings = json.loads((moved / "adapter_config.json").read_text())
    settings |= {"base_model_name_or_path": "another/name", "target_modules": settings["target_modules"][::-1]}
    (moved / "adapter_config.json").write_text(json.dumps(settings))
    assert adapters_digest(opened(tone, german)) == adapters_digest(opened(german, moved))


def test_cor_05_equal_names_with_other_content_are_other_adapters(
    base: Path, tone: Path, german: Path, tmp_path: Path, opened: Callable[..., tuple[Adapter, ...]]
) -> None:
    stronger = shutil.copytree(tone, tmp_path / "stronger")
    settings = json.loads((stronger / "adapter_config.json").read_text())
    (stronger / "adapter_config.json").write_text(json.dumps(settings | {"lora_alpha": 16}))
    digests = [adapters_digest(opened(*paths)) for paths in ((tone,), (german,), (stronger,), (tone, german), ())]
    assert len(set(digests)) == len(digests)
    assert digests[-1] is None


def test_a_pinned_adapter_with_other_content_is_refused(tone: Path, tmp_path: Path) -> None:
    pin = f"sha256:{'0' * 64}"
    with pytest.raises(DigestMismatch, match="correct the source or the pin") as refused:
        open_adapters([AdapterPlan(name="tone", path=str(tone), digest=pin)], tmp_path)
    assert refused.value.field == "adapters[tone].digest"
    found = open_adapters([AdapterPlan(name="tone", path=str(tone))], tmp_path)[0].digest
    assert open_adapters([AdapterPlan(name="tone", path=str(tone), digest=found)], tmp_path)


@pytest.mark.parametrize("missing", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_directory_that_is_no_adapter_is_refused_by_the_file_it_lacks(
    missing: str, tone: Path, tmp_path: Path, opened: Callable[..., tuple[Adapter, ...]]
) -> None:
    broken = shutil.copytree(tone, tmp_path / "broken")
    (broken / missing).unlink()
    with pytest.raises(MissingModel, match=missing):
        opened(broken)


def test_another_kind_of_adapter_is_refused(
    tone: Path, tmp_path: Path, opened: Callable[..., tuple[Adapter, ...]]
) -> None:
    other = shutil.copytree(tone, tmp_path / "other")
    settings = json.loads((other / "adapter_config.json").read_text())
    (other / "adapter_config.json").write_text(json.dumps(settings | {"peft_type": "IA3"}))
    with pytest.raises(UnsupportedModel, match="only LORA"):
        opened(other)


def test_the_adapter_of_another_model_is_refused_and_never_merged_in_part(
    rig: Rig, tmp_path: Path, tiny_model: Callable[[str], Path], opened: Callable[..., tuple[Adapter, ...]]
) -> None:
    other_shape = save_adapter(tiny_model("qwen3"), tmp_path / "qwen3")
    with pytest.raises(UnsupportedModel, match="give the adapter of this base model"):
        merge(rig.model, opened(other_shape))


def test_tensors_that_find_no_place_are_refused(
    rig: Rig, tone: Path, tmp_path: Path, opened: Callable[..., tuple[Adapter, ...]]
) -> None:
    narrowed = shutil.copytree(tone, tmp_path / "narrowed")
    settings = json.loads((narrowed / "adapter_config.json").read_text())
    (narrowed / "adapter_config.json").write_text(json.dumps(settings | {"target_modules": ["q_proj"]}))
    with pytest.raises(UnsupportedModel, match="have no place in the model"):
        merge(rig.model, opened(narrowed))


def test_an_adapter_of_one_of_two_tied_embeddings_is_refused(
    rig: Rig, base: Path, tmp_path: Path, opened: Callable[..., tuple[Adapter, ...]]
) -> None:
    adapter = save_adapter(base, tmp_path / "head", target_modules=["q_proj", "lm_head"])
    rig.model.config.tie_word_embeddings = True  # as in most small models
    with pytest.raises(UnsupportedModel, match="changes lm_head"):
        merge(rig.model, opened(adapter))


def test_a_model_with_adapters_is_another_generation_with_the_same_tokenizer_and_pool(
    base: Path, tone: Path, tmp_path: Path
) -> None:
    def plan(*adapters: Path) -> ModelPlan:
        told = [AdapterPlan(name=path.name, path=str(path)) for path in adapters]
        return ModelPlan(name="m", path=str(base), adapters=told, pool_bytes={HOST: 1 << 20})

    with node_pools(tmp_path) as pools:
        bare, adapted = (
            load_model(one, None, pools, tmp_path, default_dtype="float32") for one in (plan(), plan(tone))
        )
    assert changed_fields(bare.inputs, adapted.inputs) == ("adapter",)
    assert bare.generation != adapted.generation
    assert (adapted.bundle_digest, adapted.pool) == (bare.bundle_digest, bare.pool)
    assert list(adapted.adapters) == ["tone"]
    assert identity(plan()) != identity(plan(tone)), "a node loads it anew"
