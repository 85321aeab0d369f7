"""Conditions from verdicts. Pure.

All conditions of a status are about one ``metadata.generation``, and every type is there from the first write on.
``lastTransitionTime`` moves only when the status of a condition does, so that ages can be measured.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from kvgrove_crds.conditions import Condition, ConditionType
from kvgrove_crds.reasons import ConditionReason

_MESSAGE = 4096


@dataclass(frozen=True)
class Judgement:
    """The verdict on one condition."""

    holds: bool | None
    """None: unknown."""
    reason: ConditionReason
    message: str = ""

    @property
    def status(self) -> Literal["True", "False", "Unknown"]:
        if self.holds is None:
            return "Unknown"
        return "True" if self.holds else "False"


def conditions(
    types: Iterable[ConditionType],
    verdicts: Mapping[str, Judgement],
    before: Iterable[Condition],
    generation: int,
    now: datetime,
) -> tuple[Condition, ...]:
    """One for each of ``types``, in their order. Raises KeyError where a verdict is missing."""
    known = {condition.type: condition for condition in before}
    moment = now.replace(microsecond=0)
    made: list[Condition] = []
    for each in types:
        verdict, old = verdicts[each], known.get(each)
        same = old is not None and old.status == verdict.status
        made.append(
            Condition(
                type=each.value,
                status=verdict.status,
                observed_generation=generation,
                last_transition_time=old.last_transition_time if same and old is not None else moment,
                reason=verdict.reason,
                message=verdict.message[:_MESSAGE],
            )
        )
    return tuple(made)
