"""Reading what is declared while something is heard of it: a read sees one state, and the next one sees the news."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from kvgrove_crds.cache_node import CacheNode
from kvgrove_crds.model_version import ModelVersion
from kvgrove_crds.namespace import PromptCacheNamespace
from kvgrove_crds.schema import structural_schema
from kvgrove_operator.declared import Reader
from kvgrove_operator.kube import Kube
from kvgrove_operator.objects import FINALIZER
from kvgrove_operator.settings import parse

Object = dict[str, Any]

DEFINITIONS = {
    "components": {
        "schemas": {
            kind.__name__: structural_schema(kind)
            | {
                "x-kubernetes-group-version-kind": [
                    {"group": "kvgrove.dev", "version": "v1alpha1", "kind": kind.__name__}
                ]
            }
            for kind in (ModelVersion, PromptCacheNamespace, CacheNode)
        }
    }
}


def namespace(*keys: str) -> Object:
    prefixes = [{"name": key, "version": "1", "configMapKeyRef": {"name": key, "key": "text"}} for key in keys]
    return {
        "apiVersion": "kvgrove.dev/v1alpha1",
        "kind": "PromptCacheNamespace",
        "metadata": {"name": "bot", "namespace": "team", "uid": "u", "generation": 1, "finalizers": [FINALIZER]},
        "spec": {"modelVersionRef": {"name": "m1"}, "prefixes": prefixes},
    }


class Server:
    """An API server with one namespace and its texts; ``meanwhile`` is called as each answer is on its way."""

    def __init__(self, *keys: str) -> None:
        self.keys = keys
        self.text = "old"
        self.meanwhile: Callable[[str], None] = lambda _path: None

    async def list(self, path: str) -> list[Object]:
        found = [namespace(*self.keys)] if path.endswith("promptcachenamespaces") else []
        self.meanwhile(path)
        return found

    async def get(self, path: str) -> Object | None:
        answer: Object = DEFINITIONS if "openapi" in path else {"data": {"text": self.text}}
        self.meanwhile(path)
        return answer


def reader_of(server: Server) -> Reader:
    return Reader(cast(Kube, server), parse(["--own-namespace", "ops"]), FINALIZER)


def texts_of(reader: Reader) -> list[str | None]:
    found = asyncio.run(reader.read(()))
    assert not found.problems
    assert not found.outdated
    return [prefix.text for prefix in found.namespaces["u"].spec.prefixes]


def test_a_resync_during_a_read_makes_no_definition_outdated_and_loses_no_text() -> None:
    server = Server("a", "b")
    reader = reader_of(server)
    assert texts_of(reader) == ["old", "old"]
    server.meanwhile = lambda _path: reader.forget()
    assert texts_of(reader) == ["old", "old"]


def test_a_config_map_that_changes_while_it_is_read_is_read_once_more() -> None:
    server = Server("a", "b")
    reader = reader_of(server)

    def change(path: str) -> None:
        if path.endswith("/a"):  # its old text is on its way
            server.text = "new"
            assert reader.config_map_changed("team", "a")

    server.meanwhile = change
    texts_of(reader)
    server.meanwhile = lambda _path: None
    assert texts_of(reader) == ["new", "new"]


def test_a_text_is_lost_to_nobody_while_another_is_fetched() -> None:
    server = Server("a")
    reader = reader_of(server)
    texts_of(reader)
    server.keys = ("a", "b")
    reader.listing.heard(namespace("a", "b"), came_or_went=True)

    def change(path: str) -> None:
        if path.endswith("/b"):
            reader.config_map_changed("team", "a")

    server.meanwhile = change
    assert texts_of(reader) == ["old", "old"]
