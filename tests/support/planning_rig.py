"""Planning again and again on what came out before, as a planner does."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import msgspec

from kvgrove_crds.manifests import parse_manifest
from kvgrove_crds.model_version import ModelVersion
from kvgrove_crds.namespace import PromptCacheNamespace
from kvgrove_operator.generations import DesiredModel
from kvgrove_operator.observed import Observed
from kvgrove_operator.plan import Desired, Planned, PlanState, plan
from kvgrove_protocol.control import ModelReport, NamespacePlan
from kvgrove_protocol.identity import GenerationInputs

INPUTS = GenerationInputs(
    weights="sha256:w", tokenizer="sha256:t", chat_template="sha256:c", kv_dtype="float32", block_size=32
)


class CountingMint:
    """Distinct bytes each time; the counts show what was minted."""

    def __init__(self) -> None:
        self.nonces: Iterator[int] = count(1)
        self.secrets: Iterator[int] = count(1)

    def nonce(self) -> bytes:
        return next(self.nonces).to_bytes(16, "big")

    def secret(self) -> bytes:
        return next(self.secrets).to_bytes(32, "big")


def model(name: str = "m1", *, placement: str = "", **spec: Any) -> DesiredModel:
    resource = parse_manifest(
        {
            "apiVersion": "kvgrove.dev/v1alpha1",
            "kind": "ModelVersion",
            "metadata": {"name": name},
            "spec": {"source": {"hostPath": {"path": f"/models/{name}"}}} | spec,
        },
        source="test",
    )
    assert isinstance(resource, ModelVersion)
    adapters = tuple(f"/adapters/{adapter.name}" for adapter in resource.spec.adapters)
    return DesiredModel(resource, f"/models/{name}", adapter_paths=adapters, placement=placement)


def namespace(name: str = "a", *, uid: str = "", model_name: str = "m1", **spec: Any) -> PromptCacheNamespace:
    resource = parse_manifest(
        {
            "apiVersion": "kvgrove.dev/v1alpha1",
            "kind": "PromptCacheNamespace",
            "metadata": {"name": name, "namespace": "team", "uid": uid or f"uid-{name}"},
            "spec": {"modelVersionRef": {"name": model_name}} | spec,
        },
        source="test",
    )
    assert isinstance(resource, PromptCacheNamespace)
    return resource


def document(name: str = "doc", text: str | None = "text", version: str = "v1", **fields: Any) -> dict[str, Any]:
    content = {"text": text} if text is not None else {"configMapKeyRef": {"name": "cm", "key": "k"}}
    return {"name": name, "version": version} | content | fields


def ready(*names: str, daemons: tuple[str, ...] = ("node-0", "node-1"), inputs: GenerationInputs = INPUTS) -> Observed:
    reports = {daemon: ModelReport(name="-", state="ready", inputs=inputs) for daemon in daemons}
    return Observed(frozenset(daemons), dict.fromkeys(names, reports))


class Planning:
    """Plans again and again on the state that came out before, through its stored form."""

    def __init__(self) -> None:
        self.mint = CountingMint()
        self.state = PlanState()
        self.last: Planned | None = None
        self.now = 1000.0

    def __call__(
        self,
        *namespaces: PromptCacheNamespace,
        models: tuple[DesiredModel, ...] = (model(),),
        observed: Observed | None = None,
    ) -> Planned:
        kept = self.last.bodies if self.last is not None else {}
        seen = observed if observed is not None else ready("m1")
        self.last = plan(Desired(models, namespaces), self.state, seen, mint=self.mint, now=self.now, kept=kept)
        self.state = msgspec.json.decode(msgspec.json.encode(self.last.state), type=PlanState)
        assert self.state == self.last.state
        return self.last


def only(planned: Planned) -> NamespacePlan:
    (found,) = planned.namespaces
    return found
