"""Definitions that are older than the operator are found out by the first field that they do not know."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from kvgrove_crds.base import GROUP, VERSION
from kvgrove_crds.cache_node import CacheNode
from kvgrove_crds.model_version import ModelVersion
from kvgrove_crds.namespace import PromptCacheNamespace
from kvgrove_crds.schema import structural_schema
from kvgrove_operator.served_schema import missing_field


def published() -> dict[str, Any]:
    """As an API server does: each kind by a name of its own, with fields of the server's on top."""
    schemas: dict[str, Any] = {"Other": {"properties": {}}}
    for kind in (ModelVersion, PromptCacheNamespace, CacheNode):
        name = kind.__name__
        schema = copy.deepcopy(structural_schema(kind))
        schema["x-kubernetes-group-version-kind"] = [{"group": GROUP, "version": VERSION, "kind": name}]
        schemas[f"dev.kvgrove.{VERSION}.{name}"] = schema
    return {"components": {"schemas": schemas}}


def of(found: dict[str, Any], kind: str) -> dict[str, Any]:
    return dict(found["components"]["schemas"][f"dev.kvgrove.{VERSION}.{kind}"])


def test_definitions_of_this_release_and_of_later_ones_are_enough() -> None:
    found = published()
    assert missing_field(found) == ""
    of(found, "ModelVersion")["properties"]["spec"]["properties"]["future"] = {"type": "string"}
    assert missing_field(found) == ""


@pytest.mark.parametrize(
    ("kind", "path", "missing"),
    [
        ("PromptCacheNamespace", ("spec", "access", "tenants"), "PromptCacheNamespace.spec.access.tenants"),
        ("CacheNode", ("status", "namespaces", "ready"), "CacheNode.status.namespaces[].ready"),
        ("ModelVersion", ("status",), "ModelVersion.status"),
    ],
)
def test_a_field_that_they_lack_is_named(kind: str, path: tuple[str, ...], missing: str) -> None:
    found = published()
    at = of(found, kind)
    for name in path[:-1]:
        at = at["properties"][name]
        at = at.get("items", at)
    del at["properties"][path[-1]]
    assert missing_field(found) == missing


def test_a_kind_that_is_not_served_is_named() -> None:
    found = published()
    del found["components"]["schemas"][f"dev.kvgrove.{VERSION}.CacheNode"]
    assert missing_field(found) == "CacheNode"
