"""Rules that hold across fields: once as CEL for the API server, once as Python for everybody else.

Both halves stand side by side in one object with one wording, so that ``kubectl apply`` and ``kvgrove up`` refuse the
same manifest with the same sentence. A rule's message is ``<rule>; <cure>``. Rules that look at the object before an
update (``Transition``) are how identity becomes immutable: a change is a new object.

Cost: the API server multiplies a rule's worst case by the bounds of the lists, maps and strings around it and refuses
the whole definition above a limit, so every field that a rule walks over declares its bound.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import PydanticCustomError

VALIDATIONS = "x-kubernetes-validations"
RULE_ERROR = "kvgrove_rule"


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule. ``at`` is the YAML path below the object with the rule (``.floor``, ``[2].name`` or empty)."""

    at: str
    rule: str
    cure: str


@dataclass(frozen=True, slots=True)
class Rule:
    """An invariant of one object. ``broken`` yields the path below the object of each place that breaks it."""

    cel: str
    says: str
    cure: str
    broken: Callable[[Any], Iterable[str]]

    @property
    def message(self) -> str:
        return f"{self.says}; {self.cure}"

    def schema(self) -> dict[str, str]:
        return {"rule": self.cel, "message": self.message}

    def violations(self, value: Any) -> list[Violation]:
        return [Violation(at, self.says, self.cure) for at in self.broken(value)]


@dataclass(frozen=True, slots=True)
class Transition:
    """A rule over an update: ``broken(old, new)`` is true where the update must be refused."""

    cel: str
    says: str
    cure: str
    broken: Callable[[Any, Any], bool]

    @property
    def message(self) -> str:
        return f"{self.says}; {self.cure}"

    def schema(self) -> dict[str, str]:
        return {"rule": self.cel, "message": self.message}


def when(condition: bool, at: str = "") -> tuple[str, ...]:
    """The answer of a ``broken`` function that looks at one place only."""
    return (at,) if condition else ()


def refuse(violations: Sequence[Violation]) -> PydanticCustomError:
    """The error that carries violations through pydantic, all of an object's at once."""
    text = " | ".join(f"{v.rule}; {v.cure}" for v in violations)
    return PydanticCustomError(RULE_ERROR, "{text}", {"text": text, "violations": tuple(violations)})


def append_rules(schema: dict[str, Any], rules: Iterable[Rule | Transition]) -> dict[str, Any]:
    """Adds rules to a JSON schema node, in place, and returns it."""
    added = [rule.schema() for rule in rules]
    if added:
        schema[VALIDATIONS] = [*schema.get(VALIDATIONS, []), *added]
    return schema


def frozen_field(name: str, alias: str, *, noun: str) -> Transition:
    """An optional field of a spec that may be neither added, changed nor removed after creation."""
    return Transition(
        cel=f"has(self.{alias}) == has(oldSelf.{alias}) && (!has(self.{alias}) || self.{alias} == oldSelf.{alias})",
        says=f"spec.{alias} is immutable, because it is part of what cached blocks mean",
        cure=f"create a new {noun} with the new value and point to that",
        broken=lambda old, new: getattr(old, name) != getattr(new, name),
    )
