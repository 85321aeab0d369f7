"""Whether the API server's definitions of our kinds know every field that this release does. Pure.

A field that they do not know is dropped without a word when an object is written: of a spec that is somebody's limit on
who may share what, of a status a fact that the operator relies on. So an older definition is found out before anything
is planned by it; fields that a newer one has on top are for parsing to refuse where they are used.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from kvgrove_crds.base import API_VERSION, GROUP, VERSION
from kvgrove_crds.cache_node import CacheNode
from kvgrove_crds.model_version import ModelVersion
from kvgrove_crds.namespace import PromptCacheNamespace
from kvgrove_crds.schema import structural_schema

Schema = Mapping[str, Any]

PATH: Final = f"/openapi/v3/apis/{API_VERSION}"
"""Where the API server publishes what it serves; every account may read it (ClusterRole system:discovery)."""

_SCHEMAS: Final = {kind.__name__: structural_schema(kind) for kind in (ModelVersion, PromptCacheNamespace, CacheNode)}


def missing_field(published: Schema) -> str:
    """The first field of ours that is not served, like ``PromptCacheNamespace.spec.access``; empty: all are."""
    return next(_missing_fields(published), "")


def _missing_fields(published: Schema) -> Iterator[str]:
    served = {
        each["kind"]: schema
        for schema in published.get("components", {}).get("schemas", {}).values()
        for each in schema.get("x-kubernetes-group-version-kind", ())
        if (each["group"], each["version"]) == (GROUP, VERSION)
    }
    for kind, ours in _SCHEMAS.items():
        if kind not in served:
            yield kind
            continue
        for part in ("spec", "status"):
            theirs = served[kind].get("properties", {}).get(part)
            yield from _absent(ours["properties"][part], theirs, f"{kind}.{part}")


def _absent(ours: Schema, theirs: Schema | None, path: str) -> Iterator[str]:
    if theirs is None:
        yield path
        return
    if "items" in ours:
        yield from _absent(ours["items"], theirs.get("items"), f"{path}[]")
    known = theirs.get("properties", {})
    for name, field in ours.get("properties", {}).items():
        yield from _absent(field, known.get(name), f"{path}.{name}")
