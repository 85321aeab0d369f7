"""What the operator knows of an object between two of its own writes, and when it must look again.

The API server is the one thing that is scripted here: what counts is the order in which answers and events come.
"""

import asyncio
from typing import Any

import pytest

from kvgrove_crds.model_version import ModelVersionStatus
from kvgrove_operator.kube import Conflict
from kvgrove_operator.objects import FINALIZER, Objects

PATH = "/apis/kvgrove.dev/v1alpha1/modelversions/m"


def model(version: int, **metadata: Any) -> dict[str, Any]:
    names = {"name": "m", "uid": "u", "generation": 1, "resourceVersion": str(version)}
    return {"apiVersion": "kvgrove.dev/v1alpha1", "kind": "ModelVersion", "metadata": names | metadata, "spec": {}}


class Server:
    """Answers from a script, and counts."""

    def __init__(self) -> None:
        self.version, self.reads, self.refuses = 1, 0, False
        self.deleting = False

    def now(self) -> dict[str, Any]:
        return model(self.version, **({"deletionTimestamp": "2026-01-02T03:04:05Z"} if self.deleting else {}))

    async def get(self, _path: str) -> dict[str, Any]:
        self.reads += 1
        return self.now()

    async def apply(self, _path: str, body: dict[str, Any]) -> dict[str, Any]:
        if self.refuses:
            raise Conflict("another of that name")
        self.version += 1
        return self.now() | {"status": body["status"]}

    async def set_finalizers(self, _path: str, _held: object, _finalizers: object) -> dict[str, Any]:
        self.version += 1
        return self.now()


def scene() -> tuple[Server, Objects]:
    server = Server()
    return server, Objects(server, "op")  # type: ignore[arg-type]


async def write(objects: Objects) -> None:
    held = await objects.read(PATH)
    assert held is not None
    await objects.write_status(PATH, held, ModelVersionStatus(), (), ())


def reads_after(steps: Any) -> int:
    """Reads that one more look costs."""
    server, objects = scene()

    async def run() -> int:
        await steps(server, objects)
        before = server.reads
        assert await objects.read(PATH) is not None
        return server.reads - before

    return asyncio.run(run())


def test_what_our_own_write_answered_is_not_read_again() -> None:
    async def steps(server: Server, objects: Objects) -> None:
        await write(objects)
        assert not objects.heard(server.now())  # the watch tells of that very write

    assert reads_after(steps) == 0


def test_the_finalizers_answer_counts_too() -> None:
    async def steps(server: Server, objects: Objects) -> None:
        await objects.add_finalizer(PATH, model(1))
        assert not objects.heard(server.now())

    assert reads_after(steps) == 0


def test_somebody_elses_write_is_read() -> None:
    async def steps(server: Server, objects: Objects) -> None:
        await write(objects)
        server.version += 1
        assert objects.heard(server.now())

    assert reads_after(steps) == 1


def test_a_late_event_of_an_earlier_write_costs_a_look_and_no_more() -> None:
    async def steps(_: Server, objects: Objects) -> None:
        await write(objects)
        assert objects.heard(model(1))

    assert reads_after(steps) == 1


def test_a_write_that_failed_leaves_nothing_known() -> None:
    async def steps(server: Server, objects: Objects) -> None:
        await write(objects)
        server.refuses = True
        with pytest.raises(Conflict):
            await write(objects)

    assert reads_after(steps) == 1


def test_one_that_is_being_deleted_is_always_read_whole() -> None:
    async def steps(server: Server, objects: Objects) -> None:
        server.deleting = True
        await write(objects)

    assert reads_after(steps) == 1


def test_everything_is_read_after_a_resync_and_without_our_finalizer() -> None:
    async def forgotten(_: Server, objects: Objects) -> None:
        await write(objects)
        objects.forget()

    async def released(_: Server, objects: Objects) -> None:
        await write(objects)
        await objects.remove_finalizer(PATH, model(2, finalizers=[FINALIZER]))

    assert reads_after(forgotten) == 1
    assert reads_after(released) == 1
