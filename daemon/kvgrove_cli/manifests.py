"""A folder of YAML as the embedded fleet's desired state.

`kvgrove_crds` judges each document alone; this module adds what an API server and its stored objects would: names are
unique, an update keeps what is immutable, references to ConfigMaps are resolved to text. Everything wrong is found in
one go and raised as one ManifestError, so that the caller can keep what it had.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from kvgrove_cli.errors import UsageProblem
from kvgrove_crds.manifests import YAML_SUFFIXES, ConfigMap, Parsed, load_text
from kvgrove_crds.model_identity import ChatTemplateSource
from kvgrove_crds.model_version import ModelVersion
from kvgrove_crds.namespace import PromptCacheNamespace
from kvgrove_crds.namespace_content import DocumentSpec, PrefixSpec
from kvgrove_crds.problems import ManifestError, Problem
from kvgrove_crds.updates import refused_transitions

MAX_FILES = 1024
MAX_TOTAL_BYTES = 64 << 20

OPERATOR_NAMESPACE = "default"
"""Where ConfigMaps of chat templates live: without a cluster, the operator's namespace is kubectl's default one."""

Content = TypeVar("Content", PrefixSpec, DocumentSpec)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The files of a folder as they were at one moment."""

    files: tuple[tuple[Path, bytes], ...]

    @property
    def digest(self) -> bytes:
        """Changes with any name or content, and with nothing else (a touched file is no change)."""
        total = hashlib.sha256()
        for path, content in self.files:
            total.update(hashlib.sha256(str(path).encode()).digest() + hashlib.sha256(content).digest())
        return total.digest()


@dataclass(frozen=True, slots=True)
class Resources:
    """Sound and resolved: every prefix, document and template carries its text."""

    models: tuple[ModelVersion, ...] = ()
    namespaces: tuple[PromptCacheNamespace, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    """Name of an object (see `identity`) -> the file that declares it."""
    declared: Mapping[str, ModelVersion | PromptCacheNamespace] = field(default_factory=dict)
    """By the same names, as written: what the next version of an object is compared with."""


def take_snapshot(location: Path) -> Snapshot:
    """Reads the folder (or one file), hidden files left out. Raises UsageProblem where it cannot be read."""
    paths = _paths(location)
    if len(paths) > MAX_FILES:
        raise UsageProblem(
            f"{location}: {len(paths)} YAML files, at most {MAX_FILES} are taken; choose a smaller folder"
        )
    files: list[tuple[Path, bytes]] = []
    for path in paths:
        try:
            files.append((path, path.read_bytes()))
        except FileNotFoundError:
            continue  # replaced or removed while we looked: the next look sees the outcome
        except OSError as error:
            raise UsageProblem(f"{path}: cannot be read: {error.strerror}") from None
        if sum(len(content) for _, content in files) > MAX_TOTAL_BYTES:
            raise UsageProblem(f"{location}: more than {MAX_TOTAL_BYTES} bytes of YAML; choose a smaller folder")
    return Snapshot(tuple(files))


def parse(snapshot: Snapshot, previous: Resources | None = None) -> Resources:
    """The resources of ``snapshot`` as a successor of ``previous``. Raises ManifestError with every problem found."""
    problems: list[Problem] = []
    found = list(_documents(snapshot, problems))
    problems += _duplicates(found)
    if problems:  # what was not read cannot be referred to: do not report the consequences as well
        raise ManifestError(problems)
    config_maps = {(item.namespace, item.name): item.data for _, item in found if isinstance(item, ConfigMap)}
    models: list[ModelVersion] = []
    namespaces: list[PromptCacheNamespace] = []
    declared: dict[str, ModelVersion | PromptCacheNamespace] = {}
    for file, item in found:
        if isinstance(item, ConfigMap):
            continue
        declared[identity(item)] = item
        resolver = _Resolver(file, item, config_maps, problems)
        if isinstance(item, ModelVersion):
            models.append(resolver.model(item))
        else:
            namespaces.append(resolver.namespace(item))
    files = {identity(item): file for file, item in found}
    resources = Resources(tuple(models), tuple(namespaces), files, declared)
    if previous is not None:
        problems += _refused_updates(previous, resources)
    if problems:
        raise ManifestError(problems)
    return resources


def identity(item: Parsed) -> str:
    """How messages name an object: kind and name, with the Kubernetes namespace where it lives in one."""
    return f"{item.kind} {item.name}" if isinstance(item, ModelVersion) else f"{item.kind} {item.namespace}/{item.name}"


def _paths(location: Path) -> list[Path]:
    if location.is_file():
        return [location]
    if not location.is_dir():
        raise UsageProblem(f"{location}: no such file or directory; pass the folder that holds your manifests")
    return sorted(
        path
        for path in location.rglob("*")
        if path.suffix in YAML_SUFFIXES
        and not any(part.startswith(".") for part in path.relative_to(location).parts)
        and path.is_file()
    )


def _documents(snapshot: Snapshot, problems: list[Problem]) -> Iterator[tuple[str, Parsed]]:
    for path, content in snapshot.files:
        try:
            for item in load_text(content.decode("utf-8"), source=str(path)):
                yield str(path), item
        except UnicodeDecodeError:
            problems.append(Problem(str(path), 0, "", "is not UTF-8 text", "save it as UTF-8"))
        except ManifestError as error:
            problems.extend(error.problems)


def _duplicates(found: Sequence[tuple[str, Parsed]]) -> Iterator[Problem]:
    first: dict[str, str] = {}
    for file, item in found:
        name = identity(item)
        if name in first:
            rule = f"{name} is declared twice, first in {first[name]}"
            yield Problem(file, 0, "metadata.name", rule, "rename one or delete it")
        first.setdefault(name, file)


def _refused_updates(old: Resources, new: Resources) -> Iterator[Problem]:
    for name, item in new.declared.items():
        before = old.declared.get(name)
        for path, transition in [] if before is None else refused_transitions(before, item):
            yield Problem(new.files[name], 0, path, f"{name}: {transition.says}", transition.cure)


@dataclass(frozen=True)
class _Resolver:
    """Replaces references of one object by the texts they name, and notes those that name none."""

    file: str
    item: Parsed
    config_maps: Mapping[tuple[str, str], Mapping[str, str]]
    problems: list[Problem]

    def namespace(self, declared: PromptCacheNamespace) -> PromptCacheNamespace:
        spec = declared.spec
        prefixes = tuple(
            self._content(p, f"spec.prefixes[{i}]", declared.namespace) for i, p in enumerate(spec.prefixes)
        )
        documents = tuple(
            self._content(d, f"spec.documents[{i}]", declared.namespace) for i, d in enumerate(spec.documents)
        )
        resolved = spec.model_copy(update={"prefixes": prefixes, "documents": documents})
        return declared.model_copy(update={"spec": resolved})

    def model(self, declared: ModelVersion) -> ModelVersion:
        source = declared.spec.chat_template_from
        if source is None or source.config_map_ref is None:
            return declared
        reference = source.config_map_ref
        text = self._text(OPERATOR_NAMESPACE, reference.name, reference.key, "spec.chatTemplateFrom.configMapRef")
        inline = ChatTemplateSource.model_construct(inline=text, config_map_ref=None)
        return declared.model_copy(update={"spec": declared.spec.model_copy(update={"chat_template_from": inline})})

    def _content(self, content: Content, path: str, namespace: str) -> Content:
        reference = content.config_map_key_ref
        if reference is None:
            return content
        text = self._text(namespace, reference.name, reference.key, f"{path}.configMapKeyRef")
        return content.model_copy(update={"text": text, "config_map_key_ref": None})

    def _text(self, namespace: str, name: str, key: str, path: str) -> str:
        data = self.config_maps.get((namespace, name))
        text = "" if data is None else data.get(key, "")
        if data is None:
            self._refuse(f"{path}.name", f"there is no ConfigMap {namespace}/{name}", "add its manifest to the folder")
        elif key not in data:
            known = ", ".join(sorted(data)) or "none"
            self._refuse(f"{path}.key", f"ConfigMap {namespace}/{name} has no key {key}", f"keys it has: {known}")
        elif not text:
            self._refuse(f"{path}.key", f"key {key} of ConfigMap {namespace}/{name} is empty", "give it a text")
        return text

    def _refuse(self, path: str, rule: str, cure: str) -> None:
        self.problems.append(Problem(self.file, 0, path, f"{identity(self.item)}: {rule}", cure))
