"""What a folder of YAML must say, and how it is told what is wrong with it."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from kvgrove_cli.errors import UsageProblem
from kvgrove_cli.manifests import Resources, parse, take_snapshot
from kvgrove_crds.problems import ManifestError

MODEL = """
apiVersion: kvgrove.dev/v1alpha1
kind: ModelVersion
metadata: {name: tiny}
spec:
  source: {hostPath: {path: /models/tiny}}
"""
NAMESPACE = """
apiVersion: kvgrove.dev/v1alpha1
kind: PromptCacheNamespace
metadata: {name: assistant, namespace: shop}
spec:
  modelVersionRef: {name: tiny}
  prefixes:
  - {name: system, version: v1, text: You are helpful., documents: [policy]}
  documents:
  - name: policy
    version: v1
    configMapKeyRef: {name: texts, key: policy}
"""
TEXTS = """
apiVersion: v1
kind: ConfigMap
metadata: {name: texts, namespace: shop}
data: {policy: Returns within 30 days.}
"""


def folder(root: Path, **files: str) -> Path:
    for name, text in files.items():
        (root / f"{name}.yaml").write_text(textwrap.dedent(text))
    return root


def load(root: Path, previous: Resources | None = None) -> Resources:
    return parse(take_snapshot(root), previous)


def refusal(root: Path, previous: Resources | None = None) -> list[str]:
    with pytest.raises(ManifestError) as caught:
        load(root, previous)
    return [str(problem) for problem in caught.value.problems]


def test_references_to_config_maps_become_text(tmp_path: Path) -> None:
    resources = load(folder(tmp_path, model=MODEL, namespace=NAMESPACE, texts=TEXTS))
    (namespace,) = resources.namespaces
    assert namespace.spec.documents[0].text == "Returns within 30 days."
    assert namespace.spec.documents[0].config_map_key_ref is None
    assert namespace.spec.prefixes[0].text == "You are helpful."
    assert [model.name for model in resources.models] == ["tiny"]


@pytest.mark.parametrize(
    ("texts", "path", "says"),
    [
        (
            TEXTS.replace("name: texts", "name: other"),
            "spec.documents[0].configMapKeyRef.name",
            "no ConfigMap shop/texts",
        ),
        (TEXTS.replace("namespace: shop", "namespace: hr"), "configMapKeyRef.name", "no ConfigMap shop/texts"),
        (
            TEXTS.replace("policy:", "other:"),
            "spec.documents[0].configMapKeyRef.key",
            "has no key policy; keys it has: other",
        ),
        (TEXTS.replace("Returns within 30 days.", "''"), "configMapKeyRef.key", "is empty"),
    ],
)
def test_a_reference_to_nothing_names_file_object_path_and_cure(
    tmp_path: Path, texts: str, path: str, says: str
) -> None:
    (line,) = refusal(folder(tmp_path, model=MODEL, namespace=NAMESPACE, texts=texts))
    assert line.startswith(str(tmp_path / "namespace.yaml"))
    assert "PromptCacheNamespace shop/assistant" in line
    assert path in line
    assert says in line


def test_one_name_is_declared_once(tmp_path: Path) -> None:
    (line,) = refusal(folder(tmp_path, a=MODEL, b=MODEL))
    assert line.startswith(str(tmp_path / "b.yaml"))
    assert f"ModelVersion tiny is declared twice, first in {tmp_path / 'a.yaml'}" in line


def test_equal_names_in_two_kubernetes_namespaces_are_two_objects(tmp_path: Path) -> None:
    other = NAMESPACE.replace("namespace: shop", "namespace: hr").replace(
        "configMapKeyRef: {name: texts, key: policy}", "text: x"
    )
    assert len(load(folder(tmp_path, a=MODEL, b=NAMESPACE, c=other, d=TEXTS)).namespaces) == 2


def test_every_problem_of_every_file_is_reported_at_once(tmp_path: Path) -> None:
    lines = refusal(
        folder(
            tmp_path,
            a=MODEL.replace("hostPath", "hostpath"),
            b=NAMESPACE.replace("isolation", "x").replace("version: v1, text", "text"),
            c="a: [",
        )
    )
    assert {line.split(":")[0] for line in lines} == {str(tmp_path / f"{name}.yaml") for name in "abc"}


@pytest.mark.parametrize("value", ["0x_", "9" * 5_000, "!!bool maybe", "!!float some"])
def test_values_that_no_reader_makes_sense_of_are_problems_of_their_file(tmp_path: Path, value: str) -> None:
    (line,) = refusal(folder(tmp_path, a=MODEL, b=f"a: {value}"))
    assert line.startswith(str(tmp_path / "b.yaml"))
    assert "quotes" in line


def test_identity_of_a_model_is_immutable_and_a_new_object_is_not(tmp_path: Path) -> None:
    before = load(folder(tmp_path, model=MODEL))
    (line,) = refusal(folder(tmp_path, model=MODEL.replace("/models/tiny", "/models/big")), before)
    assert "spec" in line
    assert "immutable" in line
    renamed = MODEL.replace("/models/tiny", "/models/big").replace("name: tiny", "name: big")
    assert [model.name for model in load(folder(tmp_path, model=renamed), before).models] == ["big"]


def test_an_edited_config_map_of_a_template_is_no_forbidden_update(tmp_path: Path) -> None:
    model = MODEL + "  chatTemplateFrom: {configMapRef: {name: texts, key: template}}\n"
    texts = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: texts}\ndata: {template: one}\n"
    before = load(folder(tmp_path, model=model, texts=texts))
    after = load(folder(tmp_path, texts=texts.replace("one", "two")), before)
    sources = [resources.models[0].spec.chat_template_from for resources in (before, after)]
    assert [source and source.inline for source in sources] == ["one", "two"]


def test_a_touched_file_is_no_change_and_a_renamed_one_is(tmp_path: Path) -> None:
    folder(tmp_path, model=MODEL)
    before = take_snapshot(tmp_path).digest
    (tmp_path / "model.yaml").write_text((tmp_path / "model.yaml").read_text())
    assert take_snapshot(tmp_path).digest == before
    (tmp_path / "model.yaml").rename(tmp_path / "other.yaml")
    assert take_snapshot(tmp_path).digest != before


def test_hidden_and_other_files_are_left_out(tmp_path: Path) -> None:
    folder(tmp_path, model=MODEL)
    (tmp_path / "..data").mkdir()
    (tmp_path / "..data" / "model.yaml").write_text(MODEL)
    (tmp_path / "notes.txt").write_text("no YAML")
    assert [path.name for path, _ in take_snapshot(tmp_path).files] == ["model.yaml"]


def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageProblem, match="no such file or directory"):
        take_snapshot(tmp_path / "none")
