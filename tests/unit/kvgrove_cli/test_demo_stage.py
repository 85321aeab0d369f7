"""The demo's manifests are sound at every point of its story."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvgrove_cli.demo import stage
from kvgrove_cli.demo.stage import SECOND_MODEL, Scene, revised_template
from kvgrove_cli.errors import UsageProblem
from kvgrove_cli.manifests import parse, take_snapshot


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / 'a model: with "odd" signs'
    path.mkdir()
    (path / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": "{% for m in messages %}\n{{ m }}\n\n{% endfor %}"})
    )
    return path


@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("warm", [False, True])
def test_every_scene_is_sound(tmp_path: Path, model: Path, second: bool, warm: bool) -> None:
    scene = Scene(model, SECOND_MODEL if second else stage.FIRST_MODEL, second, 2 if second else 1, warm)
    scene.write(tmp_path / "manifests")
    resources = parse(take_snapshot(tmp_path / "manifests"))
    (namespace,) = resources.namespaces
    assert namespace.api_name == stage.NAMESPACE
    assert namespace.spec.warmup.prefixes == (("support",) if warm else ())
    assert all(document.text for document in namespace.spec.documents)
    assert len(resources.models) == 1 + second
    assert resources.models[0].spec.source.host_path is not None
    assert resources.models[0].spec.source.host_path.path == str(model)


def test_one_scene_may_follow_another(tmp_path: Path, model: Path) -> None:
    folder = tmp_path / "manifests"
    Scene(model).write(folder)
    before = parse(take_snapshot(folder))
    Scene(model, SECOND_MODEL, second_model=True, returns_version=2).write(folder)
    after = parse(take_snapshot(folder), before)
    old, new = (
        next(d.text for d in resources.namespaces[0].spec.documents if d.name == "returns")
        for resources in (before, after)
    )
    assert old != new


def test_the_second_template_is_the_first_with_a_comment(model: Path) -> None:
    assert revised_template(model) == "{#- second revision -#}\n{% for m in messages %}\n{{ m }}\n\n{% endfor %}"


def test_a_model_without_a_template_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageProblem, match="no chat template"):
        revised_template(tmp_path)
