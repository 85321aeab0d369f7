"""From YAML files to resources, or to a complete list of what is wrong with them.

Judges each document alone. What needs more than one object (a reference to a missing ModelVersion, an alias claimed
twice) is the planner's to say.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from kvgrove_crds.base import DEFAULT_NAMESPACE, ObjectMeta, Spec
from kvgrove_crds.cache_node import CacheNode
from kvgrove_crds.model_version import ModelVersion
from kvgrove_crds.namespace import PromptCacheNamespace
from kvgrove_crds.problems import Location, ManifestError, Problem, closest, problems_of, yaml_path
from kvgrove_crds.yaml_documents import YamlDocument, YamlProblem, read_documents

YAML_SUFFIXES = (".yaml", ".yml")


class ConfigMap(Spec):
    """The part of a Kubernetes ConfigMap that prefixes and documents refer to."""

    api_version: Literal["v1"] = "v1"
    kind: Literal["ConfigMap"] = "ConfigMap"
    metadata: ObjectMeta = ObjectMeta()
    data: dict[str, str] = Field(default_factory=dict)
    binary_data: dict[str, str] = Field(default_factory=dict)
    immutable: bool = False

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def namespace(self) -> str:
        return self.metadata.namespace or DEFAULT_NAMESPACE


Parsed = ModelVersion | PromptCacheNamespace | ConfigMap
_KINDS: Mapping[str, type[ModelVersion] | type[PromptCacheNamespace] | type[ConfigMap]] = {
    "ModelVersion": ModelVersion,
    "PromptCacheNamespace": PromptCacheNamespace,
    "ConfigMap": ConfigMap,
}


@dataclass(frozen=True, slots=True)
class Manifests:
    """What files declare, in the order of reading. ConfigMaps serve references where no cluster holds them."""

    model_versions: tuple[ModelVersion, ...] = ()
    namespaces: tuple[PromptCacheNamespace, ...] = ()
    config_maps: tuple[ConfigMap, ...] = ()


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a document was read, to point problems at it."""

    source: str
    document: YamlDocument | None = None

    def problem(self, location: Location, at: str, rule: str, cure: str) -> Problem:
        index, line = 1, None
        if self.document is not None:
            index, line = self.document.index, self.document.line_of((*location, *_steps(at)))
        return Problem(self.source, index, yaml_path(location) + at if location else at.lstrip("."), rule, cure, line)


def parse_manifest(document: Mapping[str, Any], *, source: str) -> ModelVersion | PromptCacheNamespace:
    """One object from a parsed document. ``source`` names it in problems. Raises ManifestError with all problems."""
    place = _Place(source)
    parsed = _parse(document, place)
    if isinstance(parsed, ConfigMap):
        raise ManifestError([_unknown_kind(place, "ConfigMap", ("ModelVersion", "PromptCacheNamespace"))])
    return parsed


def load_text(text: str, *, source: str) -> list[Parsed]:
    """The objects of one YAML text. Raises ManifestError with every problem."""
    problems: list[Problem] = []
    parsed = list(_load_text(text, source, problems))
    if problems:
        raise ManifestError(problems)
    return parsed


def load_manifests(paths: Iterable[Path]) -> Manifests:
    """Reads files, and directories with all their .yaml and .yml files. Raises ManifestError with every problem."""
    problems: list[Problem] = []
    parsed: list[Parsed] = []
    for path in paths:
        if not path.exists():
            problems.append(Problem(str(path), 0, "", "no such file or directory", "correct the path"))
            continue
        for file in _files(path):
            try:
                text = file.read_text(encoding="utf-8")
            except OSError as error:
                problems.append(Problem(str(file), 0, "", f"cannot be read: {error.strerror}", "mend or move the file"))
            except UnicodeDecodeError:
                problems.append(Problem(str(file), 0, "", "is not UTF-8 text", "save it as UTF-8"))
            else:
                parsed.extend(_load_text(text, str(file), problems))
    if problems:
        raise ManifestError(problems)
    return Manifests(
        model_versions=tuple(item for item in parsed if isinstance(item, ModelVersion)),
        namespaces=tuple(item for item in parsed if isinstance(item, PromptCacheNamespace)),
        config_maps=tuple(item for item in parsed if isinstance(item, ConfigMap)),
    )


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(file for file in path.rglob("*") if file.suffix in YAML_SUFFIXES and file.is_file())
    return [path]


def _load_text(text: str, source: str, problems: list[Problem]) -> Iterator[Parsed]:
    """Yields what is sound and appends what is not."""
    try:
        for document in read_documents(text):
            try:
                yield _parse(document.value, _Place(source, document))
            except ManifestError as error:
                problems.extend(error.problems)
    except YamlProblem as error:
        problems.append(Problem(source, error.document, "", error.rule, error.cure, line=error.line))


def _parse(value: Any, place: _Place) -> Parsed:
    if not isinstance(value, Mapping):
        raise ManifestError([place.problem((), "", "a Kubernetes object is needed", "start with apiVersion and kind")])
    kind = value.get("kind")
    model = _KINDS.get(kind) if isinstance(kind, str) else None
    if model is None:
        raise ManifestError([_unknown_kind(place, kind, tuple(_KINDS))])
    try:
        # Through JSON, because pydantic's strict mode then judges types as the API server does: no "3" for 3.
        return model.model_validate_json(json.dumps(value), strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        problems = [place.problem(*found) for found in problems_of(error, model)]
        raise ManifestError(sorted(problems, key=lambda problem: problem.line or 0)) from None


def _unknown_kind(place: _Place, kind: Any, known: tuple[str, ...]) -> Problem:
    if kind == CacheNode.__name__:
        return place.problem(("kind",), "", "CacheNode objects are written by the operator", "delete this document")
    meant = closest(kind, known) if isinstance(kind, str) else None
    cure = f"did you mean {meant}?" if meant else "correct the kind, or move the document to another folder"
    return place.problem(("kind",), "", f"one of {', '.join(known)} is needed", cure)


def _steps(at: str) -> Location:
    """``.documents[2].version`` as ``("documents", 2, "version")``."""
    return tuple(int(index) if index else name for name, index in re.findall(r"[.]([^.[]+)|\[([0-9]+)\]", at))
