"""Models of the plan, and when their generation is named (DESIGN section 4).

The planner cannot read weights. It names a generation once every daemon that reports on the model computed the same
inputs, and they are what the spec pins. A generation once named stays named while its daemons are away or restart; a
daemon that then finds other files serves nothing under that name, since requests carry the generation. When all of them
agree on something else, the files have been replaced, and the model gets another generation.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from msgspec.structs import replace

from kvgrove_crds.model_version import ModelVersion
from kvgrove_crds.reasons import ConditionReason
from kvgrove_operator.contents import body_digest
from kvgrove_operator.observed import READY, Observed
from kvgrove_operator.plan_problems import PlanProblem, of_model
from kvgrove_operator.plan_state import ModelState
from kvgrove_protocol.control import AdapterPlan, ModelPlan, ModelReport
from kvgrove_protocol.identity import GenerationInputs, changed_fields, generation

_PINS = ("weights", "tokenizer", "chat_template")


@dataclass(frozen=True)
class DesiredModel:
    """A ModelVersion, with its template as text, and where members find its files."""

    resource: ModelVersion
    path: str
    tokenizer_path: str = ""
    adapter_paths: tuple[str, ...] = ()
    """Of the spec's adapters, in its order."""
    placement: str = ""
    """Of the daemons that hold it; empty: all of them."""


@dataclass
class Models:
    """All models to be held, by name."""

    observed: Observed
    states: dict[str, ModelState] = field(default_factory=dict)
    bodies: dict[bytes, bytes] = field(default_factory=dict)
    problems: list[PlanProblem] = field(default_factory=list)

    def named(self, name: str) -> bool:
        """Whether the model has a generation."""
        return name in self.states and bool(self.states[name].plan.generation)

    @cached_property
    def generations(self) -> dict[str, bytes]:
        """Name -> generation, of those that have one. To be asked for once all models are there."""
        return {name: held.plan.generation for name, held in self.states.items() if held.plan.generation}

    @cached_property
    def daemons(self) -> dict[str, frozenset[str]]:
        """Name -> the connected daemons that are to hold the model. To be asked for once all models are there."""
        return {name: self.observed.of_placement(held.plan.placement) for name, held in self.states.items()}

    def generation_of(self, name: str) -> bytes:
        """Empty where it has none."""
        return self.states[name].plan.generation if name in self.states else b""

    def ready_everywhere(self, name: str) -> bool:
        """Whether every daemon that is to hold the model has it ready under the generation that is named."""
        if not self.named(name) or not self.daemons[name]:
            return False
        reports = self.observed.models.get(name, {})
        return all(
            daemon in reports and reports[daemon].state == READY and reports[daemon].inputs == self.states[name].inputs
            for daemon in self.daemons[name]
        )


def plan_models(
    desired: Iterable[DesiredModel],
    before: Mapping[str, ModelState],
    still_serving: Iterable[str],
    observed: Observed,
    kept: Mapping[bytes, bytes],
) -> Models:
    """The models to be held: those desired, and those that are gone while namespaces are still served by them."""
    models = Models(observed)
    for model in desired:
        name = model.resource.name
        if (problem := _unsupported(model.resource)) is not None:
            models.problems.append(of_model(name, ConditionReason.UNSUPPORTED_FORMAT, problem))
            continue
        template = _template(model.resource)
        if template:
            models.bodies[body_digest(template)] = template
        plan = _plan(model, template)
        held = before.get(name)
        inputs, problem_found = _agreed(model.resource, held, observed.models.get(name, {}))
        if problem_found is not None:
            models.problems.append(problem_found)
        if inputs is not None:
            bundle = _bundle(inputs, held, observed.models.get(name, {}))
            longest = _longest(inputs, held, observed.models.get(name, {}))
            plan = replace(
                plan,
                generation=generation(inputs),
                inputs=inputs,
                tokenizer_bundle=bundle,
                reported_len=longest,
            )
        models.states[name] = ModelState(plan=plan, inputs=inputs)
    for name in still_serving:
        if name in before and name not in models.states:
            models.states[name] = before[name]
            template_digest = before[name].plan.chat_template
            if template_digest in kept:
                models.bodies[template_digest] = kept[template_digest]
    return models


def _agreed(
    resource: ModelVersion, held: ModelState | None, reports: Mapping[str, ModelReport]
) -> tuple[GenerationInputs | None, PlanProblem | None]:
    named = held.inputs if held is not None else None
    found: dict[str, GenerationInputs] = {
        daemon: report.inputs for daemon, report in sorted(reports.items()) if report.inputs is not None
    }
    first = next(iter(found.values()), None)
    if first is not None and all(inputs == first for inputs in found.values()):
        named = first
        problem = None
    elif first is not None:
        problem = _disagreement(resource.name, named if named is not None else first, found)
    else:
        problem = None
    if named is not None and (broken := _broken_pins(resource, named)):
        message = f"{', '.join(broken)}: the files are not those that spec.digests pins; correct the source or the pin"
        return None, of_model(resource.name, ConditionReason.DIGEST_PIN_MISMATCH, message)
    return named, problem


def _bundle(inputs: GenerationInputs, held: ModelState | None, reports: Mapping[str, ModelReport]) -> bytes:
    """Digest of the bundle of tokenizer and template of these inputs; kept while no daemon is there to report it."""
    for _, report in sorted(reports.items()):
        if report.inputs == inputs and report.tokenizer_bundle:
            return report.tokenizer_bundle
    return held.plan.tokenizer_bundle if held is not None and held.inputs == inputs else b""


def _longest(inputs: GenerationInputs, held: ModelState | None, reports: Mapping[str, ModelReport]) -> int:
    """The most tokens that a node with these inputs takes; kept while no daemon is there to report it."""
    found = max((report.max_model_len for report in reports.values() if report.inputs == inputs), default=0)
    return found or (held.plan.reported_len if held is not None and held.inputs == inputs else 0)


def _disagreement(name: str, reference: GenerationInputs, found: Mapping[str, GenerationInputs]) -> PlanProblem:
    fields: set[str] = set()
    for inputs in found.values():
        fields |= set(changed_fields(reference, inputs))
    others = [daemon for daemon, inputs in found.items() if inputs != reference]
    message = (
        f"{', '.join(others[:5])} found other {', '.join(sorted(fields))} than the rest: "
        "give all nodes the same files; those that differ serve nothing of this version"
    )
    return of_model(name, ConditionReason.DIGESTS_DISAGREE, message)


def _broken_pins(resource: ModelVersion, inputs: GenerationInputs) -> list[str]:
    pins = resource.spec.digests
    if pins is None:
        return []
    return [pin for pin in _PINS if getattr(pins, pin) not in (None, getattr(inputs, pin))]


def _unsupported(resource: ModelVersion) -> str | None:
    """What a node would have to know to compute the right KV and is not told: never ignored in silence."""
    spec = resource.spec
    if spec.engine.type != "transformers":
        return f"spec.engine.type: {spec.engine.type} is not run by this release; use transformers"
    if spec.rope is not None:
        return "spec.rope: overrides are not applied by this release; set them in the model's config.json"
    return None


def _template(resource: ModelVersion) -> bytes:
    source = resource.spec.chat_template_from
    return source.inline.encode() if source is not None and source.inline is not None else b""


def _plan(model: DesiredModel, template: bytes) -> ModelPlan:
    spec = model.resource.spec
    tiers = {"device": spec.pool.device, "host": spec.pool.host, "disk": spec.pool.disk}
    return ModelPlan(
        name=model.resource.name,
        path=model.path,
        tokenizer_path=model.tokenizer_path,
        adapters=[
            AdapterPlan(name=adapter.name, path=path, digest=adapter.digest or "")
            for adapter, path in zip(spec.adapters, model.adapter_paths, strict=True)
        ],
        chat_template=body_digest(template) if template else b"",
        kv_dtype=spec.kv_format.dtype,
        kv_codec=spec.kv_format.codec,
        block_size=spec.kv_format.block_size,
        max_model_len=spec.engine.max_model_len or 0,
        max_batch=spec.engine.max_batch_size,
        prefill_chunk=spec.engine.prefill_chunk_tokens,
        pool_bytes={tier: size.bytes for tier, size in tiers.items() if size is not None and size.bytes},
        placement=model.placement,
    )
