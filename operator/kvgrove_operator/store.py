"""Where the planner's durable state is kept: writes what changed, each Secret against the version it knows.

Only the process that wrote a Secret last, or read it after that, can write it; so a leader that has been replaced and
does not know yet fails here instead of undoing what its successor made durable.
"""

import asyncio
from dataclasses import dataclass

from kvgrove_operator import paths
from kvgrove_operator.durable_state import SELECTOR, content_of, secret_of, secrets_of, state_of
from kvgrove_operator.fault_points import FaultPoint, passing
from kvgrove_operator.kube import Conflict, Kube
from kvgrove_operator.plan_state import PlanState
from kvgrove_protocol.errors import Terminal


class StoreTaken(Terminal):
    """Another process writes the operator's state: this one must not go on."""

    code = "state_in_use"


@dataclass(frozen=True)
class _Held:
    uid: str
    version: str
    content: bytes


class Store:
    """The Secrets of Kubernetes namespace ``namespace``. One process at a time writes them, in turn."""

    def __init__(self, kube: Kube, namespace: str) -> None:
        self._kube, self._namespace = kube, namespace
        self._collection = paths.secrets(namespace)
        self._held: dict[str, _Held] = {}

    async def load(self) -> PlanState:
        """What is stored; nothing is written without this before. Raises StateDamaged."""
        secrets = await self._kube.list(self._collection, labels=SELECTOR)
        state = state_of(secrets)
        self._held = {
            secret["metadata"]["name"]: _Held(
                secret["metadata"]["uid"], secret["metadata"]["resourceVersion"], content_of(secret)
            )
            for secret in secrets
        }
        return state

    async def save(self, state: PlanState) -> None:
        """Durable on return. After an error some of it may be: the next call writes the rest."""
        wanted = secrets_of(state)
        changed = [
            self._write(name, label, content)
            for name, (label, content) in wanted.items()
            if name not in self._held or self._held[name].content != content
        ]
        done = await asyncio.gather(*changed, return_exceptions=True)
        for problem in done:
            if isinstance(problem, BaseException):
                raise problem
        for name in [name for name in self._held if name not in wanted]:
            held = self._held[name]
            await self._kube.delete(f"{self._collection}/{name}", uid=held.uid, version=held.version)
            del self._held[name]

    async def _write(self, name: str, label: str, content: bytes) -> None:
        held = self._held.get(name)
        try:
            if held is None:
                body = secret_of(self._namespace, name, label, content)
                written = await self._kube.create(self._collection, body)
            else:
                body = secret_of(self._namespace, name, label, content, held.version)
                written = await self._kube.replace(f"{self._collection}/{name}", body)
        except Conflict:
            found = await self._kube.get(f"{self._collection}/{name}")
            if found is None or content_of(found) != content:  # equal: our own write, whose answer was lost
                raise StoreTaken(
                    f"Secret {name} was written by somebody else: another operator, or a restore; this one starts anew"
                ) from None
            written = found
        self._held[name] = _Held(written["metadata"]["uid"], written["metadata"]["resourceVersion"], content)
        passing(FaultPoint.SECRET_WRITTEN)
