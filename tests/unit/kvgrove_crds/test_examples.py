"""Every valid example is accepted, every invalid one is refused at the named field with the named words."""

import re
from pathlib import Path

import pytest

from kvgrove_crds import ManifestError, ModelVersion, PromptCacheNamespace, load_manifests

EXAMPLES = Path(__file__).parents[3] / "crds" / "examples"
CASES = sorted(EXAMPLES.rglob("*.yaml"))


def expectation(file: Path, name: str) -> str:
    found = re.search(rf"^# {name}: (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None, f"{file.name} lacks a line `# {name}: ...`"
    return found[1]


@pytest.mark.parametrize("file", CASES, ids=lambda file: str(file.relative_to(EXAMPLES)))
def test_example(file: Path) -> None:
    if file.relative_to(EXAMPLES).parts[0] == "valid":
        manifests = load_manifests([file])
        assert manifests.model_versions or manifests.namespaces
        return
    with pytest.raises(ManifestError) as refused:
        load_manifests([file])
    field, words = expectation(file, "field"), expectation(file, "expect")
    assert [problem.path for problem in refused.value.problems] == [field], "one defect in each example"
    assert words in str(refused.value)
    assert str(refused.value).startswith(f"{file}:")


def test_there_are_examples_of_both_sorts() -> None:
    sorts = [file.relative_to(EXAMPLES).parts[0] for file in CASES]
    assert sorts.count("valid") >= 5
    assert sorts.count("invalid") >= 25
    assert set(sorts) == {"valid", "invalid"}


def test_the_quickstart_is_one_of_each() -> None:
    manifests = load_manifests([EXAMPLES / "valid" / "quickstart"])
    (version,), (namespace,) = manifests.model_versions, manifests.namespaces
    assert isinstance(version, ModelVersion)
    assert isinstance(namespace, PromptCacheNamespace)
    assert namespace.spec.model_version_ref.name == version.name


def test_the_full_example_names_every_field_of_the_spec() -> None:
    (namespace,) = load_manifests([EXAMPLES / "valid" / "namespace-full.yaml"]).namespaces
    assert namespace.spec.model_fields_set == set(type(namespace.spec).model_fields)
