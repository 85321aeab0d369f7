"""The checked-in CRDs are what the models say, and are structural schemas within our own bounds."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from kvgrove_crds import NAMESPACE_CONDITIONS, PromptCacheNamespace
from kvgrove_crds.__main__ import main
from kvgrove_crds.crd import DEFINITIONS, Definition
from kvgrove_crds.schema import UnstructuralSchema, structural_schema
from kvgrove_crds.yaml_documents import read_documents

MANIFESTS = Path(__file__).parents[3] / "crds" / "manifests"
CHART = Path(__file__).parents[3] / "charts" / "kvgrove" / "files" / "crds"
CRDS = {path.name: yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(MANIFESTS.glob("*.yaml"))}


def nodes(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")
    if "additionalProperties" in schema:
        yield from nodes(schema["additionalProperties"], f"{path}.*")


def schema_of(crd: dict[str, Any]) -> dict[str, Any]:
    (version,) = crd["spec"]["versions"]
    schema: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return schema


ALL_NODES = [pair for crd in CRDS.values() for pair in nodes(schema_of(crd), crd["spec"]["names"]["kind"])]


def test_checked_in_files_are_current() -> None:
    assert main(["render", "--check", "--out", str(MANIFESTS), "--out", str(CHART)]) == 0


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda definition: definition.name)
def test_a_file_means_the_same_to_kubectl_whose_parser_takes_a_lone_n_for_false(definition: Definition) -> None:
    (document,) = read_documents((MANIFESTS / f"{definition.name}.yaml").read_text(encoding="utf-8"))
    assert document.value == definition.as_yaml()


def test_check_names_each_file_that_is_not_current(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render", "--out", str(tmp_path)]) == 0
    assert main(["render", "--check", "--out", str(tmp_path)]) == 0
    edited, extra = tmp_path / "cachenodes.kvgrove.dev.yaml", tmp_path / "old.kvgrove.dev.yaml"
    edited.write_text(edited.read_text(encoding="utf-8") + "# by hand\n", encoding="utf-8")
    extra.touch()
    capsys.readouterr()
    assert main(["render", "--check", "--out", str(tmp_path)]) == 1
    assert [line.split(": ")[0] for line in capsys.readouterr().err.splitlines()] == [str(edited), str(extra)]
    assert main(["render", "--out", str(tmp_path)]) == 0
    assert main(["render", "--check", "--out", str(tmp_path)]) == 0


def test_names_scopes_and_columns() -> None:
    seen = {
        crd["spec"]["names"]["kind"]: (crd["spec"]["names"]["shortNames"], crd["spec"]["scope"])
        for crd in CRDS.values()
    }
    assert seen == {
        "ModelVersion": (["mv"], "Cluster"),
        "PromptCacheNamespace": (["pcn"], "Namespaced"),
        "CacheNode": (["cn"], "Cluster"),
    }
    for crd in CRDS.values():
        (version,) = crd["spec"]["versions"]
        assert version["subresources"] == {"status": {}}
        assert {"Ready", "Phase", "Age"} <= {column["name"] for column in version["additionalPrinterColumns"]}
    (namespace,) = CRDS["promptcachenamespaces.kvgrove.dev.yaml"]["spec"]["versions"]
    columns = [column["name"] for column in namespace["additionalPrinterColumns"] if "priority" not in column]
    assert columns == ["Ready", "Phase", "Generation", "Warm", "Hit Ratio", "Age"]


@pytest.mark.parametrize(("path", "node"), ALL_NODES, ids=[path for path, _ in ALL_NODES])
def test_node_is_structural_and_bounded(path: str, node: dict[str, Any]) -> None:
    assert not {"$ref", "anyOf", "oneOf", "allOf", "title", "nullable"} & set(node)
    assert node.get("additionalProperties") is not False
    assert ("type" in node) != node.get("x-kubernetes-int-or-string", False)
    if path.count(".") == 1 and path.endswith((".apiVersion", ".kind", ".metadata")):
        return
    if node.get("type") == "array":
        assert "maxItems" in node
        assert node["x-kubernetes-list-type"] in {"atomic", "set", "map"}
        keys = node.get("x-kubernetes-list-map-keys", [])
        assert set(keys) <= set(node["items"].get("required", [])), "keys of list maps are required"
    if node.get("type") == "string":
        assert {"maxLength", "enum", "format"} & set(node)
    if "additionalProperties" in node:
        assert "maxProperties" in node
    if not path.endswith(("[]", ".*")):
        assert node.get("description"), "kubectl explain has something to say"
    for rule in node.get("x-kubernetes-validations", []):
        assert "; " in rule["message"], "a rule says the cure"
        assert "\n" not in rule["message"]


def test_columns_and_selectable_fields_point_to_fields_that_exist() -> None:
    for definition in DEFINITIONS:
        known = {path.partition(".")[2] for path, _ in nodes(structural_schema(definition.model), "")}
        plain = [c.path for c in definition.columns if "[?" not in c.path and not c.path.startswith(".metadata")]
        for path in (*plain, *definition.selectable):
            assert path.removeprefix(".") in known


def test_conditions_of_a_kind_are_named_in_its_description() -> None:
    conditions = structural_schema(PromptCacheNamespace)["properties"]["status"]["properties"]["conditions"]
    assert conditions["description"] == ", ".join(NAMESPACE_CONDITIONS) + "."
    assert conditions["x-kubernetes-list-map-keys"] == ["type"]


def test_a_type_that_no_structural_schema_can_hold_is_refused_by_name() -> None:
    class Loose(BaseModel):
        either: int | str

    class Kind(BaseModel):
        spec: Loose

    with pytest.raises(UnstructuralSchema, match=r"Kind\.spec\.either: alternatives of types"):
        structural_schema(Kind)


def test_a_default_that_the_api_server_would_not_fill_in_alike_is_refused() -> None:
    class Part(BaseModel):
        size: int = 1

    class Whole(BaseModel):
        part: Part = Part(size=2)

    class Kind(BaseModel):
        spec: Whole

    with pytest.raises(UnstructuralSchema, match=r"Kind\.spec\.part: an object's default differs"):
        structural_schema(Kind)
