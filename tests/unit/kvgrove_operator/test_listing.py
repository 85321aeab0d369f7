"""What is read of the declared namespaces, and that only a whole list says that one is gone."""

import asyncio
from typing import Any

import pytest

from kvgrove_operator import paths
from kvgrove_operator.kube import Unavailable
from kvgrove_operator.listing import FEW, Listing
from kvgrove_operator.objects import path_of

Object = dict[str, Any]


def namespace(name: str, version: int = 1, uid: str = "") -> Object:
    metadata = {"name": name, "namespace": "team", "uid": uid or name, "generation": version}
    return {"apiVersion": "kvgrove.dev/v1alpha1", "kind": "PromptCacheNamespace", "metadata": metadata, "spec": {}}


class Server:
    def __init__(self, *names: str) -> None:
        self.there = {name: namespace(name) for name in names}
        self.calls: list[str] = []
        self.away = False

    async def list(self, path: str) -> list[Object]:
        self.calls.append("list")
        if self.away:
            raise Unavailable("away")
        assert path == paths.namespaces("")
        return [*self.there.values()]

    async def get(self, path: str) -> Object | None:
        self.calls.append(path.rpartition("/")[2])
        return self.there.get(path.rpartition("/")[2])


def scene(*names: str) -> tuple[Server, Listing]:
    server = Server(*names)
    listing = Listing(server, ())  # type: ignore[arg-type]
    assert read(listing) == dict.fromkeys(names, 1)
    server.calls.clear()
    return server, listing


def read(listing: Listing) -> dict[str, int]:
    found = asyncio.run(listing.read())
    return {item["metadata"]["name"]: item["metadata"]["generation"] for item in found}


def test_what_nobody_told_of_is_not_read_again() -> None:
    server, listing = scene("a", "b")
    assert read(listing) == {"a": 1, "b": 1}
    assert server.calls == []


def test_one_that_changed_is_read_alone() -> None:
    server, listing = scene("a", "b")
    server.there["b"] = namespace("b", 2)
    listing.heard(namespace("b", 2), came_or_went=False)
    assert read(listing) == {"a": 1, "b": 2}
    assert server.calls == ["b"]


def test_only_a_whole_list_says_that_one_is_gone() -> None:
    server, listing = scene("a", "b")
    del server.there["b"]
    listing.heard(namespace("b"), came_or_went=False)
    assert read(listing) == {"a": 1}
    assert server.calls == ["b", "list"]


def test_another_object_of_that_name_is_a_reason_to_list() -> None:
    server, listing = scene("a", "b")
    server.there["b"] = namespace("b", uid="another")
    listing.heard(namespace("b"), came_or_went=False)
    read(listing)
    assert server.calls == ["b", "list"]


def test_what_comes_or_goes_is_listed_and_so_is_everything_after_a_resync() -> None:
    server, listing = scene("a")
    server.there["b"] = namespace("b")
    listing.heard(namespace("b"), came_or_went=True)
    assert read(listing) == {"a": 1, "b": 1}
    listing.forget()
    read(listing)
    assert server.calls == ["list", "list"]


def test_many_changes_are_one_list() -> None:
    names = [f"n{number}" for number in range(FEW + 1)]
    server, listing = scene(*names)
    for name in names:
        listing.heard(namespace(name), came_or_went=False)
    read(listing)
    assert server.calls == ["list"]


def test_a_read_that_failed_leaves_nothing_to_rely_on() -> None:
    server, listing = scene("a", "b")
    server.away = True
    listing.heard(namespace("c"), came_or_went=True)
    with pytest.raises(Unavailable):
        read(listing)
    server.away = False
    del server.there["b"]
    assert read(listing) == {"a": 1}


def test_namespaces_are_known_by_their_paths() -> None:
    assert path_of(namespace("a")) == paths.namespace("team/a")
