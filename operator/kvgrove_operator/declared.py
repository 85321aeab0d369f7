"""Reads everything that is declared, as of now, and makes it what planning takes.

Always what is there, never what events told: a namespace that is missing from a list is gone, and its secret is
destroyed for that. An object that does not read as one of its kind is planned as it was before; where nothing is known
of it, as one that nobody may use. The same holds of every object while the cluster's definitions of our kinds are older
than this release: what they have dropped of a spec cannot be seen any more.
"""

import asyncio
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from kvgrove_crds.base import Resource
from kvgrove_crds.manifests import parse_manifest
from kvgrove_crds.model_version import ModelVersion
from kvgrove_crds.namespace import ModelVersionRef, PromptCacheNamespace, PromptCacheNamespaceSpec
from kvgrove_crds.namespace_access import AccessSpec
from kvgrove_crds.problems import ManifestError
from kvgrove_crds.reasons import ConditionReason
from kvgrove_operator import paths, served_schema, texts
from kvgrove_operator.keys import Key, Kind
from kvgrove_operator.kube import Kube, Object, Unavailable
from kvgrove_operator.listing import Listing
from kvgrove_operator.model_files import desired_model
from kvgrove_operator.plan import Desired, DesiredModel
from kvgrove_operator.plan_problems import PlanProblem, of_model, of_namespace
from kvgrove_operator.settings import Settings
from kvgrove_operator.workloads import placement_of
from kvgrove_protocol.errors import Terminal
from kvgrove_protocol.fence import Fence

_NOTHING = ""
"""Of the fields that the cluster's definitions lack."""


@dataclass(frozen=True)
class Declared:
    """What is declared at one moment."""

    models: dict[str, ModelVersion] = field(default_factory=dict)
    """All that read as one, by name; also those that are being deleted."""
    unreadable: frozenset[str] = frozenset()
    """Names of ModelVersions that do not read as one."""
    namespaces: dict[str, PromptCacheNamespace] = field(default_factory=dict)
    """By UID, without those that are being deleted; texts filled in."""
    present: frozenset[str] = frozenset()
    """UIDs of all namespaces, also of those that are being deleted."""
    desired: Desired = field(default_factory=Desired)
    seen: dict[str, Fence] = field(default_factory=dict)
    """UID -> the counters that the object's status tells of."""
    problems: tuple[PlanProblem, ...] = ()
    outdated: bool = False
    """The definitions of our kinds are older than this release."""
    unfinalized: tuple[Object, ...] = ()
    """Namespaces and models, as read, that are to get our finalizer before they are planned."""

    def news(self, before: "Declared") -> Iterator[Key]:
        """Objects of another generation than ``before``, or that were not there; and models that others refer to."""
        for uid in self.namespaces.keys() | before.namespaces.keys():
            now, then = self.namespaces.get(uid), before.namespaces.get(uid)
            if now is not None and (then is None or then.metadata.generation != now.metadata.generation):
                yield Key(Kind.NAMESPACE, now.api_name)
            for name in {each.spec.model_version_ref.name if each is not None else "" for each in (now, then)} - {""}:
                if now is None or then is None or now.spec.model_version_ref != then.spec.model_version_ref:
                    yield Key(Kind.MODEL, name)
        for name, model in self.models.items():
            if before.models.get(name) != model:
                yield Key(Kind.MODEL, name)


class _OutdatedDefinition(Terminal):
    code = "crd_outdated"

    def __init__(self, field: str) -> None:
        super().__init__(
            f"the cluster's definition does not know {field}, which may have been dropped: what was in force stays, or "
            "nobody may use it; apply the CRDs of this release, then the object again"
        )


class Reader:
    """``finalizer``: without it an object is not planned yet."""

    def __init__(self, kube: Kube, settings: Settings, finalizer: str) -> None:
        self._kube, self._settings, self._finalizer = kube, settings, finalizer
        self.listing = Listing(kube, settings.namespaces)
        """To be told what is heard of namespaces."""
        self._config_maps: dict[texts.Name, dict[str, str] | None] = {}
        self._last: dict[str, PromptCacheNamespace] = {}
        self._parsed: dict[str, tuple[Object, Resource]] = {}
        self._unserved = _NOTHING
        self._anew = True
        """Whether definitions are to be looked at, whatever they were: by the next read, not by the one under way."""
        self._changes = 0
        """Of ConfigMaps, as far as was heard."""
        self._needed: set[texts.Name] = set()

    def config_map_changed(self, namespace: str, name: str) -> bool:
        """Whether that matters: then it is read anew."""
        self._changes += 1
        self._config_maps.pop((namespace, name), None)
        return (namespace, name) in self._needed

    def forget(self) -> None:
        """Read ConfigMaps and definitions anew: an event may have been missed."""
        self._changes += 1
        self._config_maps.clear()
        self.listing.forget()
        self._anew = True

    async def read(self, known: Collection[str]) -> Declared:
        """``known``: UIDs that are planned already, with or without our finalizer. Raises what `Kube` raises."""
        if self._anew or self._unserved != _NOTHING:
            self._unserved = await self._missing_field()
            self._anew = False
        found_models = await self._kube.list(paths.MODELS)
        found = await self.listing.read()
        problems: list[PlanProblem] = []
        models = self._models(found_models, problems)
        present = frozenset(_uid(item) for item in found)
        live = [item for item in found if not _deleting(item)]
        namespaces = self._namespaces(live, problems)
        self._last = dict(namespaces)
        self._parsed = {uid: self._parsed[uid] for uid in map(_uid, (*live, *found_models)) if uid in self._parsed}
        finalized = {_uid(item) for item in live if self._finalizer in item["metadata"].get("finalizers", ())}
        data = await self._texts(namespaces.values(), models.values())
        filled = {uid: texts.filled(each, data) for uid, each in namespaces.items() if uid in finalized or uid in known}
        return Declared(
            models=models,
            unreadable=frozenset(item["metadata"]["name"] for item in found_models) - frozenset(models),
            namespaces=filled,
            present=present,
            desired=Desired(self._desired_models(models, data, problems), tuple(filled.values())),
            seen={_uid(item): fence for item in found if (fence := _seen(item)) is not None},
            problems=tuple(problems),
            outdated=self._unserved != _NOTHING,
            unfinalized=tuple(
                item
                for item in (*live, *found_models)
                if not _deleting(item) and self._finalizer not in item["metadata"].get("finalizers", ())
            ),
        )

    def _models(self, found: Iterable[Object], problems: list[PlanProblem]) -> dict[str, ModelVersion]:
        models: dict[str, ModelVersion] = {}
        for item in found:
            name = item["metadata"]["name"]
            try:
                model = self._read_as_ours(item, f"ModelVersion {name}")
            except ManifestError as error:
                problems.append(of_model(name, ConditionReason.INVALID_SPEC, _one_line(error)))
                continue
            except _OutdatedDefinition as error:
                problems.append(of_model(name, ConditionReason.CRD_OUTDATED, error.message))
                continue
            if isinstance(model, ModelVersion):
                models[name] = model
        return models

    def _namespaces(self, found: Iterable[Object], problems: list[PlanProblem]) -> dict[str, PromptCacheNamespace]:
        namespaces: dict[str, PromptCacheNamespace] = {}
        for item in found:
            uid, name = _uid(item), f"{item['metadata']['namespace']}/{item['metadata']['name']}"
            try:
                parsed = self._read_as_ours(item, f"PromptCacheNamespace {name}")
            except ManifestError as error:
                message = f"{_one_line(error)}; what was in force for it stays, apply the CRDs of this release"
                problems.append(of_namespace(name, ConditionReason.INVALID_SPEC, message))
                namespaces[uid] = self._last.get(uid) or _nobodys(item)
                continue
            except _OutdatedDefinition as error:
                problems.append(of_namespace(name, ConditionReason.CRD_OUTDATED, error.message))
                namespaces[uid] = self._last.get(uid) or _nobodys(item)
                continue
            if isinstance(parsed, PromptCacheNamespace):
                namespaces[uid] = parsed
        return namespaces

    def _read_as_ours(self, item: Object, source: str) -> Resource:
        """Most of a thousand objects are as they were a moment ago. Raises ManifestError or _OutdatedDefinition."""
        if self._unserved != _NOTHING:
            raise _OutdatedDefinition(self._unserved)
        parts, known = _own_parts(item), self._parsed.get(_uid(item))
        if known is None or known[0] != parts:
            known = self._parsed[_uid(item)] = parts, parse_manifest(parts, source=source)
        return known[1]

    async def _missing_field(self) -> str:
        published = await self._kube.get(served_schema.PATH)
        if published is None:
            raise Unavailable(f"GET {served_schema.PATH}: the definitions of our kinds are not published yet")
        return served_schema.missing_field(published)

    def _desired_models(
        self, models: dict[str, ModelVersion], data: texts.Data, problems: list[PlanProblem]
    ) -> tuple[DesiredModel, ...]:
        desired: list[DesiredModel] = []
        for model in models.values():
            filled = texts.filled_model(model, self._settings.own_namespace, data)
            if filled is None:
                message = (
                    "spec.chatTemplateFrom.configMapRef: there is no such ConfigMap or key, or it is empty; add it"
                )
                problems.append(of_model(model.name, ConditionReason.CONTENT_NOT_FOUND, message))
                continue
            desired.append(desired_model(filled, self._settings.daemons.model_root, placement_of(filled)))
        return tuple(desired)

    async def _texts(
        self, namespaces: Iterable[PromptCacheNamespace], models: Iterable[ModelVersion]
    ) -> dict[texts.Name, dict[str, str]]:
        needed: set[texts.Name] = set()
        for resource in namespaces:
            needed |= texts.named_by(resource)
        for model in models:
            needed |= texts.named_by_model(model, self._settings.own_namespace)
        self._needed = needed
        found = {name: held for name, held in self._config_maps.items() if name in needed}
        missing = [name for name in needed if name not in found]
        changes = self._changes
        found |= zip(missing, await asyncio.gather(*map(self._config_map, missing)), strict=True)
        if self._changes == changes:  # else some of it may be older than what was heard meanwhile: read it once more
            self._config_maps = dict(found)
        return {name: held for name, held in found.items() if held is not None}

    async def _config_map(self, name: texts.Name) -> dict[str, str] | None:
        found = await self._kube.get(paths.config_map(*name))
        return None if found is None else dict(found.get("data") or {})


def _own_parts(item: Object) -> Object:
    """Without the status: an older one must not keep a spec from being read; and without what servers add."""
    metadata = item["metadata"]
    kept = {key: metadata[key] for key in ("name", "namespace", "uid", "generation") if key in metadata}
    return {"apiVersion": item["apiVersion"], "kind": item["kind"], "metadata": kept, "spec": item.get("spec", {})}


def _nobodys(item: Object) -> PromptCacheNamespace:
    """Stands for one that cannot be read: nobody may use it, and nothing is kept for it."""
    metadata = item["metadata"]
    reference = item.get("spec", {}).get("modelVersionRef", {})
    name = reference.get("name") if isinstance(reference, dict) else None
    return PromptCacheNamespace.model_validate(
        {
            "metadata": {key: metadata[key] for key in ("name", "namespace", "uid", "generation")},
            "spec": PromptCacheNamespaceSpec(
                model_version_ref=ModelVersionRef(name=name if isinstance(name, str) else "unknown"),
                access=AccessSpec(tenants=()),
                suspend=True,
            ),
        }
    )


def _seen(item: Object) -> Fence | None:
    status: Any = item.get("status") or {}
    purge = (status.get("purge") or {}).get("counter")
    if purge is None:
        return None
    return Fence(
        purge=int(purge), documents=int(status.get("documentRevision", 0)), access=int(status.get("accessRevision", 0))
    )


def _uid(item: Object) -> str:
    return str(item["metadata"]["uid"])


def _deleting(item: Object) -> bool:
    return bool(item["metadata"].get("deletionTimestamp"))


def _one_line(error: ManifestError) -> str:
    return "; ".join(f"{problem.path}: {problem.rule}" for problem in error.problems[:3])
