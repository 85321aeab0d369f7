"""Where the files of a model are looked for, and what is said where they are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvgrove_cli.errors import UsageProblem
from kvgrove_cli.manifests import Resources
from kvgrove_cli.sources import find_files, tokenizer_path, weights_path
from kvgrove_crds.manifests import parse_manifest
from kvgrove_crds.model_version import ModelVersion


def model(name: str = "m", **spec: Any) -> ModelVersion:
    document = {"apiVersion": "kvgrove.dev/v1alpha1", "kind": "ModelVersion", "metadata": {"name": name}, "spec": spec}
    resource = parse_manifest(document, source="test")
    assert isinstance(resource, ModelVersion)
    return resource


def on_host(path: Path) -> dict[str, Any]:
    return {"hostPath": {"path": str(path)}}


def test_a_host_path_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "tokenizer").mkdir()
    item = model(source=on_host(tmp_path), tokenizerFrom=on_host(tmp_path / "tokenizer"))
    assert weights_path(item) == tmp_path
    assert tokenizer_path(item) == tmp_path / "tokenizer"
    assert tokenizer_path(model(source=on_host(tmp_path))) is None


def test_a_cached_repository_is_found_at_its_commit_and_nothing_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    commit = "0123456789abcdef0123456789abcdef01234567"
    source = {"huggingFace": {"repo": "acme/tiny", "revision": commit}}
    with pytest.raises(UsageProblem, match=f"hf download acme/tiny --revision {commit}") as caught:
        weights_path(model(source=source))
    assert "\n" not in caught.value.message
    snapshot = tmp_path / "models--acme--tiny" / "snapshots" / commit
    snapshot.mkdir(parents=True)
    assert weights_path(model(source=source)) == snapshot


def test_a_volume_claim_needs_a_cluster() -> None:
    with pytest.raises(UsageProblem, match=r"spec\.source\.pvc: there are no volume claims \(weights\).*use hostPath"):
        weights_path(model(source={"pvc": {"claimName": "weights"}}))


def test_adapters_are_looked_for_like_models_and_a_missing_one_is_named(tmp_path: Path) -> None:
    def adapted(path: Path) -> ModelVersion:
        return model(source=on_host(tmp_path), adapters=[{"name": "tone", "source": on_host(path)}])

    assert find_files(Resources((adapted(tmp_path),))).models[0].adapter_paths == (str(tmp_path),)
    problems = find_files(Resources((adapted(tmp_path / "x"),))).problems
    assert "spec.adapters[0].source.hostPath.path" in problems["ModelVersion m"]


def test_one_model_without_files_leaves_the_others(tmp_path: Path) -> None:
    found = find_files(
        Resources((model("good", source=on_host(tmp_path)), model("bad", source=on_host(tmp_path / "x"))))
    )
    assert [item.resource.name for item in found.models] == ["good"]
    assert list(found.problems) == ["ModelVersion bad"]
