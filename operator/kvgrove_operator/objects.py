"""What the operator writes on the objects that people made: status, finalizer, Events. Nothing else of them is ours.

What our own last write answered is the object as it is until a watch tells of another one, so it need not be read again
before the next write. A watch that missed something is made up for by `forget`.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from kvgrove_crds.base import Status
from kvgrove_crds.conditions import Condition
from kvgrove_operator import paths
from kvgrove_operator.fault_points import FaultPoint, passing
from kvgrove_operator.kube import Kube, Object

FINALIZER: Final = "kvgrove.dev/evidence"
"""Keeps a namespace until everything of it is erased, and a ModelVersion while it is used."""

_EVENTFUL: Final = {
    "Ready": "False",
    "Stalled": "False",
    "DigestsVerified": "Unknown",
    "InvalidationComplete": "True",
    "ErasureVerified": "True",
}
"""Conditions that people wait for -> what they are before anything has happened: to begin so is no transition."""
_NOTE = 1024
_KEPT: Final = ("name", "namespace", "uid", "generation", "resourceVersion", "finalizers")


class Objects:
    def __init__(self, kube: Kube, identity: str) -> None:
        self._kube, self._identity = kube, identity
        self._ours: dict[str, Object] = {}
        self.status_writes = 0
        """Only rises."""

    async def read(self, path: str) -> Object | None:
        """The object, perhaps without its spec; None: it is gone."""
        return self._ours.get(path) or await self._kube.get(path)

    def heard(self, held: Object) -> bool:
        """A watch tells of an object: whether somebody else has written it."""
        path = path_of(held)
        known = self._ours.get(path)
        if known is not None and known["metadata"]["resourceVersion"] == held["metadata"]["resourceVersion"]:
            return False
        self._ours.pop(path, None)
        return True

    def forget(self) -> None:
        """Read everything anew: an event may have been missed."""
        self._ours.clear()

    async def write_status(
        self,
        path: str,
        held: Object,
        status: Status,
        before: Iterable[Condition],
        after: Iterable[Condition],
        *,
        announced: str = "",
    ) -> None:
        """The whole status in one write, then an Event for each transition that people wait for.

        ``announced``: type of a condition that is told of in any case. Raises `Conflict` if ``held`` has been replaced
        by another object of that name.
        """
        metadata = {key: held["metadata"][key] for key in ("name", "namespace", "uid") if key in held["metadata"]}
        body = {
            "apiVersion": held["apiVersion"],
            "kind": held["kind"],
            "metadata": metadata,
            "status": status.model_dump(mode="json", by_alias=True, exclude_none=True),
        }
        passing(FaultPoint.STATUS_TO_WRITE)
        self._ours.pop(path, None)  # should this fail, what is there is not known
        self._wrote(path, await self._kube.apply(f"{path}/status", body))
        passing(FaultPoint.STATUS_WRITTEN)
        self.status_writes += 1
        known = {condition.type: condition.status for condition in before}
        for condition in after:
            usual = _EVENTFUL.get(condition.type)
            turned = usual is not None and known.get(condition.type, usual) != condition.status
            if turned or condition.type == announced:
                await self._event(held, condition)
                passing(FaultPoint.EVENT_WRITTEN)

    async def add_finalizer(self, path: str, held: Object) -> None:
        finalizers = held["metadata"].get("finalizers", [])
        self._wrote(path, await self._kube.set_finalizers(path, held, [*finalizers, FINALIZER]))

    async def remove_finalizer(self, path: str, held: Object) -> None:
        """Raises `Conflict` if the object is newer than ``held``."""
        self._ours.pop(path, None)
        finalizers = held["metadata"].get("finalizers", [])
        if FINALIZER in finalizers:
            await self._kube.set_finalizers(path, held, [each for each in finalizers if each != FINALIZER])

    def _wrote(self, path: str, answer: Object | None) -> None:
        if answer is None or is_deleting(answer):  # how one is erased depends on its spec
            self._ours.pop(path, None)
        else:
            metadata = {key: answer["metadata"][key] for key in _KEPT if key in answer["metadata"]}
            kept: Object = {key: answer[key] for key in ("apiVersion", "kind", "status") if key in answer}
            self._ours[path] = kept | {"metadata": metadata}

    async def _event(self, held: Object, condition: Condition) -> None:
        metadata = held["metadata"]
        namespace = metadata.get("namespace", "default")
        good = (condition.status == "True") is (condition.type != "Stalled")
        await self._kube.create(
            paths.events(namespace),
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"generateName": f"{metadata['name']}.", "namespace": namespace},
                "involvedObject": {
                    "apiVersion": held["apiVersion"],
                    "kind": held["kind"],
                    "name": metadata["name"],
                    "namespace": namespace,
                    "uid": metadata["uid"],
                },
                "type": "Normal" if good else "Warning",
                "reason": str(condition.reason),
                "message": f"{condition.type}={condition.status} {condition.message}"[:_NOTE].rstrip(),
                "source": {"component": "kvgrove-operator"},
                "reportingComponent": "kvgrove.dev/operator",
                "reportingInstance": self._identity,
                "firstTimestamp": _now(),
                "lastTimestamp": _now(),
                "count": 1,
            },
        )


def path_of(held: Object) -> str:
    """Where an object of ours lies."""
    metadata = held["metadata"]
    if held["kind"] == "ModelVersion":
        return paths.model(metadata["name"])
    return paths.namespace(f"{metadata['namespace']}/{metadata['name']}")


def is_deleting(held: Object) -> bool:
    return bool(held["metadata"].get("deletionTimestamp"))


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
