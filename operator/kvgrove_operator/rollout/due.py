"""Which event of a rollout is due: a function of what is declared, what is durable, what is reported and the time."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from kvgrove_crds.namespace_delivery import RolloutSpec, RolloutStep, WarmupSpec
from kvgrove_crds.reasons import ConditionReason as Reason
from kvgrove_operator.rollout.analysis import Reported
from kvgrove_operator.rollout.facts import Refused, RolloutState, Target
from kvgrove_operator.rollout.gate import Verdict, Warmth, warm_enough
from kvgrove_operator.rollout.table import ENDS, Event, Phase
from kvgrove_protocol.canonical import digest


@dataclass(frozen=True)
class Rules:
    """What is declared."""

    wanted: str | None
    """The ModelVersion that is to serve; None: none that may."""
    rollout: RolloutSpec = field(default_factory=RolloutSpec)
    warmup: WarmupSpec = field(default_factory=WarmupSpec)
    suspended: bool = False

    @property
    def limits(self) -> bytes:
        """Names what a rollout is judged by: after a failure it is tried again only under other limits."""
        return digest("rollout/limits", [self.rollout.model_dump_json(), self.warmup.model_dump_json()])


@dataclass(frozen=True)
class Seen:
    """What is reported, at one moment."""

    now: float
    """Unix seconds."""
    generations: Mapping[str, bytes] = field(default_factory=dict)
    """ModelVersion -> its generation, of those that have one."""
    ready: Collection[str] = ()
    """ModelVersions that every node which is to hold them holds."""
    nodes: Mapping[str, Collection[str]] = field(default_factory=dict)
    """ModelVersion -> the connected daemons that are to hold it."""
    warmth: Mapping[bytes, Mapping[str, Warmth]] = field(default_factory=dict)
    """Generation -> node -> its report, under the fence in force."""
    serving: Collection[bytes] = ()
    """Generations that some connected member says it serves the namespace by, beside the active one or as it."""
    measures: Reported = field(default_factory=dict)
    erasing: Collection[bytes] = ()
    """Generations that were given up, and whose blocks are not erased everywhere yet."""

    def target(self, model: str) -> Target:
        return Target(model=model, generation=self.generations.get(model, b""))


def due(state: RolloutState, rules: Rules, seen: Seen) -> Event | None:
    """The event that is due now; None while nothing is."""
    if state.phase is Phase.ROLLING_BACK:
        gone = state.candidate is None or not state.candidate.generation
        return Event.BACK if gone or _left(state, seen) else None
    if state.phase in ENDS:
        return _at_an_end(state, rules, seen)
    candidate = state.candidate
    if candidate is None:
        return None
    now_named = seen.generations.get(candidate.model, b"")
    replaced = bool(candidate.generation and now_named and now_named != candidate.generation)
    if state.active is not None and (rules.wanted != candidate.model or replaced):
        return Event.WITHDRAWN
    if rules.suspended and state.active is not None:
        return None
    match state.phase:
        case Phase.PENDING:
            if not now_named or now_named in seen.erasing:
                return None
            return Event.ADOPTED if _nothing_serves(state, seen) else Event.NAMED
        case Phase.LOADING:
            if candidate.model not in seen.ready:
                return None
            same = state.active is not None and state.active.generation == candidate.generation
            return Event.ADOPTED if same else Event.LOADED
        case Phase.WARMING:
            if warm(state, rules, seen) is Verdict.PASS:
                return Event.WARM
            return Event.STUCK if _too_late(state, rules, seen) else None
        case Phase.AWAITING_APPROVAL:
            return Event.APPROVED if approved(candidate, rules.rollout) else None
        case Phase.SHIFTING:
            return _while_shifting(state, rules, seen)
        case _:
            return _while_stalled(state, rules, seen)


def next_due(state: RolloutState, rules: Rules, now: float) -> float | None:
    """When time alone may bring an event (Unix seconds, after ``now``); None: never."""
    times: list[float] = []
    if state.previous is not None:
        times.append(state.promoted_at + rules.rollout.window.seconds)
    if not rules.suspended:
        if state.phase is Phase.WARMING:
            times.append(state.since + rules.warmup.deadline.seconds)
        if state.phase is Phase.SHIFTING:
            times.append(state.since + current_step(state, rules.rollout).pause.seconds)
        if rules.rollout.analysis is not None and is_shifting(state):
            times.append(state.analysis.interval_from + rules.rollout.analysis.interval.seconds)
    return min((each for each in times if each > now), default=None)


def warm(state: RolloutState, rules: Rules, seen: Seen) -> Verdict:
    """The gate before traffic."""
    if state.candidate is None:
        return Verdict.NOT_MEASURED
    nodes, reports = seen.nodes.get(state.candidate.model, ()), seen.warmth.get(state.candidate.generation, {})
    return warm_enough(nodes, reports, rules.warmup.minimum_ratio)


def approved(candidate: Target, rollout: RolloutSpec) -> bool:
    if rollout.approval == "Automatic":
        return True
    named = rollout.approved_generation
    return named is not None and candidate.generation.hex().startswith(named)


def current_step(state: RolloutState, rollout: RolloutSpec) -> RolloutStep:
    """Of a spec that has lost steps meanwhile, the last."""
    return rollout.steps[min(state.step, len(rollout.steps) - 1)]


def weight(state: RolloutState, rollout: RolloutSpec) -> int:
    """Percent of new conversations that the candidate takes."""
    return current_step(state, rollout).weight if is_shifting(state) else 0


def why_stuck(state: RolloutState, rules: Rules, seen: Seen) -> str:
    if state.phase is Phase.WARMING:
        measured = warm(state, rules, seen) is not Verdict.NOT_MEASURED
        return (Reason.WARMUP_DEADLINE_EXCEEDED if measured else Reason.WARMUP_NOT_MEASURED).value
    return (_trouble(state, rules) or Reason.ANALYSIS_FAILED).value


def _at_an_end(state: RolloutState, rules: Rules, seen: Seen) -> Event | None:
    wanted, active, previous = rules.wanted, state.active, state.previous
    if wanted is None or active is None or wanted == active.model:
        return None
    target = seen.target(wanted)
    if state.phase is Phase.PROMOTED and previous is not None and previous == target:
        return Event.REVERTED
    if state.refused is not None and state.refused == Refused(target=target, limits=rules.limits):
        return None
    return Event.TARGETED


def _left(state: RolloutState, seen: Seen) -> bool:
    """Whether nobody serves what is rolled back."""
    return state.candidate is None or state.candidate.generation not in seen.serving


def _nothing_serves(state: RolloutState, seen: Seen) -> bool:
    return state.active is None or state.active.model not in seen.generations


def _too_late(state: RolloutState, rules: Rules, seen: Seen) -> bool:
    return seen.now >= state.since + rules.warmup.deadline.seconds


def is_shifting(state: RolloutState) -> bool:
    return Phase.SHIFTING in (state.phase, state.stalled_in if state.phase is Phase.STALLED else None)


def _trouble(state: RolloutState, rules: Rules) -> Reason | None:
    """Which limit of the analysis is exceeded."""
    limits, found = rules.rollout.analysis, state.analysis
    if limits is None:
        return None
    if found.failures > limits.failure_limit:
        return Reason.ANALYSIS_FAILED
    if found.inconclusive > limits.inconclusive_limit:
        return Reason.ANALYSIS_INCONCLUSIVE
    if found.not_measured > limits.not_measured_limit:
        return Reason.ANALYSIS_NOT_MEASURED
    return None


def _while_shifting(state: RolloutState, rules: Rules, seen: Seen) -> Event | None:
    trouble = _trouble(state, rules)
    if trouble is not None:
        back = trouble is Reason.ANALYSIS_FAILED and rules.rollout.auto_rollback
        return Event.FAILED if back else Event.STUCK
    pause = current_step(state, rules.rollout).pause.seconds
    if seen.now < state.since + pause:
        return None
    if pause and rules.rollout.analysis is not None and not state.analysis.passed:
        return None
    return Event.STEPPED if state.step + 1 < len(rules.rollout.steps) else Event.FINISHED


def _while_stalled(state: RolloutState, rules: Rules, seen: Seen) -> Event | None:
    if state.stalled_in is Phase.WARMING:
        still = warm(state, rules, seen) is not Verdict.PASS and _too_late(state, rules, seen)
        return None if still else Event.WARMS
    trouble = _trouble(state, rules)
    if trouble is None:
        return Event.SHIFTS
    back = trouble is Reason.ANALYSIS_FAILED and rules.rollout.auto_rollback
    return Event.FAILED if back else None
