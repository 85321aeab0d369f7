"""The planner's durable state as Secrets of the operator's namespace, one for each object. Pure.

One Secret for each PromptCacheNamespace (by UID) and for each ModelVersion (by name), so that a change writes little
and one damaged object harms no other. The former hold the namespaces' secrets; the latter are no secret, and lie here
so that the same hands keep them.
"""

import base64
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from kvgrove_operator.plan_state import ModelState, NamespaceState, PlanState
from kvgrove_protocol.errors import Terminal

Object = dict[str, Any]

SELECTOR: Final = "kvgrove.dev/state"
"""Label of all of them; its value says of what they are the state."""
_NAMESPACE, _MODEL = "namespace", "model"
_KEY = "state"


class StateDamaged(Terminal):
    """A Secret that holds the operator's state is not what the operator wrote."""

    code = "state_damaged"


class StoredNamespace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    uid: str
    state: NamespaceState
    removed: bool = False


class StoredModel(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    state: ModelState


def secrets_of(state: PlanState) -> dict[str, tuple[str, bytes]]:
    """Secret name -> (value of the label, content): what must be stored for ``state``, and nothing else."""
    found: dict[str, tuple[str, bytes]] = {}
    for removed, held in ((False, state.namespaces), (True, state.removed)):
        for uid, namespace in held.items():
            stored = StoredNamespace(uid=uid, state=namespace, removed=removed)
            found[f"kvgrove-namespace-{uid}"] = (_NAMESPACE, msgspec.json.encode(stored, order="sorted"))
    for name, model in state.models.items():
        stored_model = StoredModel(name=name, state=model)
        found[f"kvgrove-model-{name}"] = (_MODEL, msgspec.json.encode(stored_model, order="sorted"))
    return found


def state_of(secrets: Iterable[Mapping[str, Any]]) -> PlanState:
    """What is stored. Raises StateDamaged, which names the Secret and the cure."""
    namespaces: dict[str, NamespaceState] = {}
    removed: dict[str, NamespaceState] = {}
    models: dict[str, ModelState] = {}
    for secret in secrets:
        try:
            if secret["metadata"]["labels"][SELECTOR] == _MODEL:
                model = msgspec.json.decode(content_of(secret), type=StoredModel)
                models[model.name] = model.state
            else:
                stored = msgspec.json.decode(content_of(secret), type=StoredNamespace)
                (removed if stored.removed else namespaces)[stored.uid] = stored.state
        except (KeyError, ValueError, msgspec.MsgspecError):
            raise StateDamaged(
                f"Secret {secret['metadata']['name']}: its content is not the operator's; restore it from a backup, or "
                "delete it: what it was about is then planned anew, above all that members saw"
            ) from None
    return PlanState(namespaces=namespaces, removed=removed, models=models)


def content_of(secret: Mapping[str, Any]) -> bytes:
    """Raises KeyError or ValueError for a Secret that is not one of ours."""
    return base64.b64decode(secret["data"][_KEY], validate=True)


def secret_of(namespace: str, name: str, label: str, content: bytes, version: str = "") -> Object:
    """The object to be written. ``version``: of the one that it replaces."""
    metadata: Object = {
        "name": name,
        "namespace": namespace,
        "labels": {SELECTOR: label, "app.kubernetes.io/managed-by": "kvgrove-operator"},
    }
    if version:
        metadata["resourceVersion"] = version
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kvgrove.dev/state",
        "metadata": metadata,
        "data": {_KEY: base64.b64encode(content).decode()},
    }
