"""The rules over an update, for those who apply manifests without an API server: the same that CEL states there."""

from collections.abc import Iterator

from kvgrove_crds.base import Spec
from kvgrove_crds.cache_node import CacheNode
from kvgrove_crds.cel import Transition
from kvgrove_crds.model_version import ModelVersion
from kvgrove_crds.namespace import PromptCacheNamespace


def refused_transitions(
    old: ModelVersion | PromptCacheNamespace | CacheNode, new: ModelVersion | PromptCacheNamespace | CacheNode
) -> list[tuple[str, Transition]]:
    """(YAML path, broken rule) for each rule that forbids replacing ``old`` by ``new``; empty where it is allowed.

    Both must be the same object (kind, namespace and name): otherwise nothing is compared.
    """
    if (old.kind, old.namespace, old.name) != (new.kind, new.namespace, new.name):
        return []
    return list(_walk(old, new, ""))


def _walk(old: Spec, new: Spec, path: str) -> Iterator[tuple[str, Transition]]:
    for transition in new.transitions:
        if transition.broken(old, new):
            yield path, transition
    for name, field in type(new).model_fields.items():
        before, after = getattr(old, name), getattr(new, name)
        if isinstance(before, Spec) and type(before) is type(after):
            yield from _walk(before, after, f"{path}.{field.alias or name}".removeprefix("."))
