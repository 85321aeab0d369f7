"""What is wrong is named by file, line, document, field, rule and cure, all of it at once."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgrove_crds import ManifestError, ModelVersion, Problem, load_manifests, load_text, parse_manifest
from kvgrove_crds.yaml_documents import read_documents
from kvgrove_protocol.errors import Terminal

VERSION: dict[str, Any] = {
    "apiVersion": "kvgrove.dev/v1alpha1",
    "kind": "ModelVersion",
    "metadata": {"name": "m"},
    "spec": {"source": {"hostPath": {"path": "/models/m"}}},
}


def problems(text: str) -> tuple[Problem, ...]:
    with pytest.raises(ManifestError) as refused:
        load_text(text, source="a.yaml")
    return refused.value.problems


def with_spec(**spec: Any) -> dict[str, Any]:
    return {**VERSION, "spec": {**VERSION["spec"], **spec}}


def test_a_dict_parses_to_a_frozen_model_with_defaults() -> None:
    version = parse_manifest(VERSION, source="memory")
    assert isinstance(version, ModelVersion)
    assert (version.namespace, version.name, version.spec.pool.host.bytes) == ("default", "m", 2**30)
    with pytest.raises(ValueError, match="frozen"):
        version.kind = "Other"  # type: ignore[assignment, misc]


def test_every_problem_of_a_document_is_reported_by_yaml_path() -> None:
    broken = with_spec(kvformat={}, pool={"host": "20GB", "device": 3}, kvFormat={"blockSize": 33})
    with pytest.raises(ManifestError) as refused:
        parse_manifest(broken, source="memory")
    assert isinstance(refused.value, Terminal)
    assert {p.path for p in refused.value.problems} == {
        "spec.kvformat",
        "spec.pool.host",
        "spec.pool.device",
        "spec.kvFormat.blockSize",
    }
    assert str(refused.value).count("\n") == 3, "one line for each"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("kvformat", "kvFormat"),
        ("kv_format", "kvFormat"),
        ("chat-template-from", "chatTemplateFrom"),
        ("ropes", "rope"),
    ],
)
def test_unknown_field_suggests_the_nearest(written: str, meant: str) -> None:
    with pytest.raises(ManifestError) as refused:
        parse_manifest(with_spec(**{written: {}}), source="memory")
    (problem,) = refused.value.problems
    assert (problem.path, problem.rule, problem.cure) == (
        f"spec.{written}",
        "unknown field",
        f"did you mean {meant}?",
    )


def test_unknown_field_far_from_all_lists_what_is_known_there() -> None:
    with pytest.raises(ManifestError) as refused:
        parse_manifest(with_spec(pool={"zzz": 1}), source="memory")
    assert refused.value.problems[0].cure == "delete it (known here: device, host, disk)"


def test_python_spelling_is_not_accepted_in_yaml() -> None:
    with pytest.raises(ManifestError, match=r"spec\.engine\.max_batch_size: unknown field"):
        parse_manifest(with_spec(engine={"max_batch_size": 1}), source="memory")


def test_types_are_judged_as_the_api_server_does() -> None:
    text = """
apiVersion: kvgrove.dev/v1alpha1
kind: PromptCacheNamespace
metadata: {name: chat}
spec:
  modelVersionRef: {name: m}
  suspend: "no"
  purge: {epoch: "3"}
  documents:
  - {name: d, version: 1.10, text: x}
  - {name: e, version: 2026-11-29, text: x}
"""
    found = problems(text)
    assert [(p.line, p.path, p.rule) for p in found] == [
        (7, "spec.suspend", "true or false is needed"),
        (8, "spec.purge.epoch", "a whole number is needed"),
        (10, "spec.documents[0].version", "text is needed"),
    ], "a date stays text, as in Kubernetes"
    assert str(found[2]) == "a.yaml:10: document 1: spec.documents[0].version: text is needed; put the value in quotes"


@pytest.mark.parametrize(
    ("text", "line", "rule"),
    [
        ("kind: [1\n", 2, "not valid YAML"),
        ("a: 1\nb: 2\na: 3\n", 3, "the key a is given twice"),
        ("a: &x [*x]\n", 1, "an anchor contains itself"),
        ("? [1]\n: 2\n", 1, "a key is plain text"),
        ("a: !!python/object:os.system x\n", 1, "not valid YAML"),
        ("a: !!binary eA==\n", 1, "not valid YAML"),
        ("a: 1\nb: \x00\n", 2, "a control character"),
        ("a: " + "[" * 3000, 1, "nested too deeply"),
    ],
)
def test_what_is_not_usable_yaml_is_named_with_its_line(text: str, line: int, rule: str) -> None:
    (problem,) = problems(text)
    assert problem.line == line
    assert rule in problem.rule
    assert problem.cure


def test_plain_words_are_what_kubectl_makes_of_them() -> None:
    text = "[n, Y, yes, off, 1:30, 2026-11-29, 010, 0x1F, 1e3, 08, 1.10, 1_0, ~, v1, .5, none, nay, 12ab]"
    (document,) = read_documents(text)
    assert document.value == [
        *(False, True, True, False, "1:30", "2026-11-29", 8, 31, 1000.0, 8.0, 1.1, 10, None, "v1", 0.5),
        *("none", "nay", "12ab"),
    ]


def test_merge_keys_are_expanded() -> None:
    (document,) = read_documents("base: &b {x: 1}\nmore: {<<: *b, z: 2}\n")
    assert document.value == {"base": {"x": 1}, "more": {"x": 1, "z": 2}}


def test_anchors_cannot_expand_without_bound() -> None:
    layers = "\n".join(f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 10)}]" for i in range(1, 9))
    (problem,) = problems(f"l0: &l0 [x]\n{layers}\n")
    assert problem.rule == "a document has at most 200000 values"


@pytest.mark.parametrize(
    ("text", "path", "cure"),
    [
        ("kind: Modelversion", "kind", "did you mean ModelVersion?"),
        ("kind: CacheNode", "kind", "delete this document"),
        ("kind: Deployment", "kind", "correct the kind, or move the document to another folder"),
        ("[1, 2]", "", "start with apiVersion and kind"),
    ],
)
def test_other_documents_are_refused(text: str, path: str, cure: str) -> None:
    (problem,) = problems(text)
    assert (problem.path, problem.cure) == (path, cure)


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        ("0x_", "the value cannot be read as a whole number"),
        ("9" * 5_000, "the value cannot be read as a whole number"),
        ("0x" + "f" * 5_000, "a whole number has at most 64 bits"),
        (str(2**63), "a whole number has at most 64 bits"),
        ("!!int ''", "the value cannot be read as a whole number"),
        ("!!bool maybe", "the value cannot be read as a truth value"),
        ("!!float some", "the value cannot be read as a number"),
        ("!!float ''", "the value cannot be read as a number"),
    ],
)
def test_values_that_are_not_what_they_say_are_problems_of_their_line(value: str, rule: str) -> None:
    text = f"kind: ConfigMap\n---\nkind: ConfigMap\ndata: {{a: {value}}}\n"
    found = next(problem for problem in problems(text) if problem.document == 2)
    assert (found.line, found.rule, found.cure) == (4, rule, "put it in quotes, or correct it")


@given(
    tag=st.sampled_from(["", *(f"!!{name} " for name in ("int", "float", "bool", "null", "str", "seq", "map", "set"))]),
    value=st.text(st.characters(codec="utf-8"), max_size=12)
    | st.text("0123456789xob_+-.eE:<>'", max_size=12)
    | st.sampled_from([".inf", "-.inf", ".nan", "0x" + "f" * 40, "1" * 400, '"\\ud800"', "2026-13-45", "&a [*a]"]),
    field=st.sampled_from(["blockSize", "dtype", "maxBranches"]),
)
def test_whatever_a_value_is_the_answer_is_a_list_of_problems(tag: str, value: str, field: str) -> None:
    text = f"{json.dumps(VERSION)[:-2]}, kvFormat: {{{field}: {tag}{value}}}}}}}"
    with contextlib.suppress(ManifestError):
        load_text(text, source="a.yaml")


def test_other_group_or_version_is_refused() -> None:
    with pytest.raises(ManifestError, match=r"apiVersion: one of kvgrove\.dev/v1alpha1 is needed"):
        parse_manifest({**VERSION, "apiVersion": "kvgrove.dev/v1"}, source="memory")


def test_no_text_of_a_prompt_is_quoted() -> None:
    text = """
apiVersion: kvgrove.dev/v1alpha1
kind: PromptCacheNamespace
metadata: {name: chat}
spec:
  modelVersionRef: {name: m}
  documents:
  - {name: d, version: v1, text: [SECRET-TEXT]}
  - {name: d, version: v1, txt: SECRET-TEXT}
"""
    assert "SECRET" not in "\n".join(map(str, problems(text)))


def test_a_directory_is_read_in_order_and_every_file_is_judged(tmp_path: Path) -> None:
    good = "kind: ConfigMap\napiVersion: v1\nmetadata: {name: texts, namespace: team}\ndata: {a: b}\n"
    (tmp_path / "a.yaml").write_text(f"---\n{good}---\n", encoding="utf-8")
    (tmp_path / "notes.txt").write_text("not: [read", encoding="utf-8")
    (config_map,) = load_manifests([tmp_path]).config_maps
    assert (config_map.namespace, config_map.name, config_map.data) == ("team", "texts", {"a": "b"})

    (tmp_path / "b.yml").write_text("kind: [", encoding="utf-8")
    (tmp_path / "c.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ManifestError) as refused:
        load_manifests([tmp_path, tmp_path / "missing"])
    assert [(Path(p.file).name, p.document) for p in refused.value.problems] == [
        ("b.yml", 1),
        ("c.yaml", 0),
        ("missing", 0),
    ]
