"""Durations in Go spelling (``1h30m``), kept as written.

The API server reads them with Go's parser, so this module accepts what Go does, less what nobody means here
(signs, micro- and nanoseconds), and nothing else: ``7d`` is refused with the cure, not guessed.
"""

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, Self

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from kvgrove_crds.cel import Rule, append_rules, refuse, when

_PATTERN = "^([0-9]{1,9}([.][0-9]{1,6})?(ms|s|m|h))+$"
_WHOLE = re.compile(_PATTERN[1:-1], re.ASCII)
_PART = re.compile("([0-9]+(?:[.][0-9]+)?)(ms|s|m|h)", re.ASCII)
_MILLISECONDS = {"h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_MAX_LENGTH = 32
_LIMIT = 87_600 * _MILLISECONDS["h"]


class Duration(str):
    """A length of time from 0s to 87600h (ten years). Compare ``.seconds``: ``90m`` and ``1h30m`` are equal lengths."""

    __slots__ = ()

    def __new__(cls, text: str) -> Self:
        """Raises ValueError, whose message says the cure, where the text is not a duration."""
        if _parse(text) is None:
            raise ValueError(f"{text!r}: {DURATION.message}")
        return super().__new__(cls, text)

    @classmethod
    def of(cls, milliseconds: int) -> Self:
        """The canonical spelling of whole milliseconds: ``of(5_400_000)`` is ``1h30m``, ``of(0)`` is ``0s``."""
        text, rest = "", milliseconds
        for unit, size in _MILLISECONDS.items():
            count, rest = divmod(rest, size)
            text += f"{count}{unit}" if count else ""
        return cls(text or "0s")

    @property
    def seconds(self) -> float:
        return _seconds(self)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return _text_schema(DURATION)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return append_rules(_text_json_schema(), [DURATION])


@dataclass(frozen=True)
class Between:
    """Narrows an annotated ``Duration`` to ``low <= value <= high``."""

    low: str
    high: str

    @property
    def rule(self) -> Rule:
        low, high = Duration(self.low).seconds, Duration(self.high).seconds
        return Rule(
            # One rule with the pattern in front, not two: on a malformed text the second would only add Go's own error.
            cel=f"{_IS_DURATION} && duration(self) >= duration('{self.low}')"
            f" && duration(self) <= duration('{self.high}')",
            says=f"a duration from {self.low} to {self.high} in hours, minutes, seconds",
            cure=f"write a value in that range, like {self.low} (7 days are 168h)",
            broken=lambda text: when(_parse(text) is None or not low <= Duration(text).seconds <= high),
        )

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return _text_schema(self.rule)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return append_rules(_text_json_schema(), [self.rule])


def _text_schema(rule: Rule) -> CoreSchema:
    """Text in, Duration inside, the same text out. One rule, so that one sentence says all that is wrong."""

    def check(text: str) -> Duration:
        if violations := rule.violations(text):
            raise refuse(violations)
        return Duration(text)

    serialization = core_schema.plain_serializer_function_ser_schema(str, return_schema=core_schema.str_schema())
    return core_schema.no_info_after_validator_function(check, core_schema.str_schema(), serialization=serialization)


def _text_json_schema() -> dict[str, Any]:
    return {"type": "string", "maxLength": _MAX_LENGTH}


@lru_cache(maxsize=1024)  # the same few texts, over and over
def _parse(text: str) -> Fraction | None:
    """Exact milliseconds; None where the text is not a duration within the limit."""
    if len(text) > _MAX_LENGTH or _WHOLE.fullmatch(text) is None:
        return None
    total = sum((Fraction(number) * _MILLISECONDS[unit] for number, unit in _PART.findall(text)), Fraction(0))
    return total if total <= _LIMIT else None


@lru_cache(maxsize=1024)
def _seconds(text: str) -> float:
    milliseconds = _parse(text)
    assert milliseconds is not None, "the constructor refused every other text"  # noqa: S101
    return float(milliseconds / 1000)


_IS_DURATION = f"self.matches('{_PATTERN}')"
DURATION = Rule(
    cel=f"{_IS_DURATION} && duration(self) <= duration('87600h')",
    says="a duration is made of hours, minutes, seconds and milliseconds, like 1h30m, up to 87600h",
    cure="write it in those units (7 days are 168h)",
    broken=lambda text: when(_parse(text) is None),
)
