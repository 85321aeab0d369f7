"""What follows when an event is due: level-based.

The next state is a function of what is declared, what is durable, what members report and the time, so a planner may
stop at any point and another go on. Whoever calls `advance` makes its state durable before anyone is told of it.
"""

from dataclasses import dataclass

from msgspec.structs import replace

from kvgrove_crds.reasons import ConditionReason as Reason
from kvgrove_operator.rollout.analysis import baseline, judge
from kvgrove_operator.rollout.due import Rules, Seen, due, is_shifting, why_stuck
from kvgrove_operator.rollout.facts import Analysis, Refused, RolloutState, Target
from kvgrove_operator.rollout.gate import Verdict
from kvgrove_operator.rollout.table import ENDS, Event, Phase, step

_MOST_EVENTS = 64
"""In one call; the rest comes with the next planning. The longest way through a rollout is shorter."""


@dataclass(frozen=True)
class Advanced:
    state: RolloutState
    retired: tuple[bytes, ...]
    """Generations that nobody is to serve any more: their blocks are to be erased."""


def advance(state: RolloutState, rules: Rules, seen: Seen) -> Advanced:
    """What follows ``state`` now. Calling it twice changes nothing the second time."""
    retired: list[bytes] = []
    state = _measured(_on_the_clock(_renamed(state, rules, seen, retired), rules, seen), rules, seen)
    for _ in range(_MOST_EVENTS):
        event = due(state, rules, seen)
        if event is None:
            break
        state = _entered(state, event, rules, seen, retired)
    state = _on_the_clock(state, rules, seen)  # one that has begun just now may be suspended from its first moment
    if state.previous is not None and seen.now >= state.promoted_at + rules.rollout.window.seconds:
        retired.append(state.previous.generation)
        state = replace(state, previous=None)
    held = {each.generation for each in state.targets}
    return Advanced(state, tuple(dict.fromkeys(each for each in retired if each and each not in held)))


# -- what changes without an event -------------------------------------------------------------------------------------


def _renamed(state: RolloutState, rules: Rules, seen: Seen, retired: list[bytes]) -> RolloutState:
    """Files that were replaced in place take their generation with them: there is nothing to go back to."""
    if state.active is not None:
        found = seen.target(state.active.model)
        if found.generation and found != state.active:
            retired.append(state.active.generation)
            state = replace(state, active=found)
    elif state.phase is Phase.PENDING:
        candidate = seen.target(rules.wanted) if rules.wanted is not None else state.candidate
        if candidate != state.candidate:
            state = replace(state, candidate=candidate, started_at=seen.now, since=seen.now)
    if state.previous is not None and state.previous != seen.target(state.previous.model):
        retired.append(state.previous.generation)
        state = replace(state, previous=None)
    return state


def _on_the_clock(state: RolloutState, rules: Rules, seen: Seen) -> RolloutState:
    """Time stands still while the namespace is suspended."""
    under_way = state.phase not in ENDS and state.active is not None
    if rules.suspended and under_way:
        return state if state.suspended_at else replace(state, suspended_at=seen.now)
    if not state.suspended_at:
        return state
    stood_still = seen.now - state.suspended_at
    resumed = replace(state, suspended_at=0.0, since=state.since + stood_still)
    return replace(resumed, analysis=_new_interval(state, seen)) if is_shifting(state) else resumed


def _measured(state: RolloutState, rules: Rules, seen: Seen) -> RolloutState:
    """Take the measurement that is due, if one is."""
    limits, analysis = rules.rollout.analysis, state.analysis
    if limits is None or rules.suspended or not is_shifting(state):
        return state
    if seen.now < analysis.interval_from + limits.interval.seconds:
        return state
    fresh = _new_interval(state, seen)
    match judge(limits, analysis.baseline, fresh.baseline):
        case Verdict.PASS:
            found = replace(fresh, inconclusive=0, not_measured=0, passed=True)
        case Verdict.FAIL:
            found = replace(fresh, inconclusive=0, not_measured=0, passed=False, failures=analysis.failures + 1)
        case Verdict.INCONCLUSIVE:
            found = replace(fresh, inconclusive=analysis.inconclusive + 1, not_measured=0)
        case Verdict.NOT_MEASURED:
            found = replace(fresh, not_measured=analysis.not_measured + 1, inconclusive=0)
    return replace(state, analysis=found)


def _new_interval(state: RolloutState, seen: Seen) -> Analysis:
    candidate, active = state.candidate, state.active
    if candidate is None or active is None:
        return Analysis(interval_from=seen.now)
    counts = baseline(seen.measures, candidate.generation, active.generation)
    return replace(state.analysis, interval_from=seen.now, baseline=counts)


# -- what an event does ------------------------------------------------------------------------------------------------


def _entered(state: RolloutState, event: Event, rules: Rules, seen: Seen, retired: list[bytes]) -> RolloutState:
    after = replace(state, phase=step(state.phase, event), since=seen.now)
    match event:
        case Event.TARGETED:
            assert rules.wanted is not None  # noqa: S101 - by what makes the event due
            return replace(
                after,
                candidate=seen.target(rules.wanted),
                started_at=seen.now,
                hosted=False,
                step=0,
                reason="",
                stalled_in=None,
                analysis=Analysis(),
            )
        case Event.NAMED:
            return replace(after, candidate=seen.target(_candidate(state).model))
        case Event.LOADED:
            return replace(after, hosted=True)
        case Event.APPROVED:
            begun = replace(after, step=0, analysis=Analysis())
            return replace(begun, analysis=_new_interval(begun, seen))
        case Event.STEPPED:
            stepped = replace(after, step=state.step + 1)
            return replace(stepped, analysis=replace(_new_interval(stepped, seen), passed=False))
        case Event.ADOPTED | Event.FINISHED:
            return _promoted(after, event, seen, retired)
        case Event.STUCK:
            return replace(after, since=state.since, stalled_in=state.phase, reason=why_stuck(state, rules, seen))
        case Event.WARMS | Event.SHIFTS:
            return replace(after, since=state.since, stalled_in=None, reason="")
        case Event.FAILED:
            refused = Refused(target=_candidate(state), limits=rules.limits)
            return replace(after, stalled_in=None, reason=Reason.ANALYSIS_FAILED.value, refused=refused)
        case Event.WITHDRAWN:
            return replace(after, stalled_in=None, reason="")
        case Event.REVERTED:
            return replace(
                after,
                candidate=state.active,
                active=state.previous,
                previous=None,
                hosted=True,
                promoted_at=seen.now,
                started_at=seen.now,
                reason="",
            )
        case Event.BACK:
            if state.hosted:
                retired.append(_candidate(state).generation)
            return replace(after, candidate=None, hosted=False, step=0, analysis=Analysis(), suspended_at=0.0)
        case _:
            return after


def _promoted(after: RolloutState, event: Event, seen: Seen, retired: list[bytes]) -> RolloutState:
    old, new = after.active, seen.target(_candidate(after).model)
    previous = after.previous
    if event is Event.FINISHED:
        if previous is not None:
            retired.append(previous.generation)
        previous = old
    elif old is not None:
        retired.append(old.generation)
    return replace(
        after,
        active=new,
        candidate=None,
        previous=previous,
        promoted_at=seen.now,
        hosted=False,
        step=0,
        reason="",
        analysis=Analysis(),
        refused=None,
    )


def _candidate(state: RolloutState) -> Target:
    if state.candidate is None:
        raise ValueError(f"a rollout that is {state.phase} is of nothing")
    return state.candidate
