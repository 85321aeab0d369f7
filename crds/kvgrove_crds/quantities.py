"""Byte quantities in Kubernetes spelling (``20Gi``), kept as written.

A ``Quantity`` is a ``str``: it prints back exactly as it was read, so that server-side apply and GitOps see no
difference, and it knows its ``bytes``. Exponents, milli units and negative numbers are refused: nobody means them
when they size a cache.
"""

import re
from fractions import Fraction
from functools import lru_cache
from typing import Any, Self

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from kvgrove_crds.cel import Rule, append_rules, refuse, when

_PATTERN = "^[0-9]{1,19}([.][0-9]{1,6})?(Ki|Mi|Gi|Ti|Pi|Ei|k|M|G|T|P|E)?$"
_PARTS = re.compile("([0-9]{1,19}(?:[.][0-9]{1,6})?)(Ki|Mi|Gi|Ti|Pi|Ei|k|M|G|T|P|E)?", re.ASCII)
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_FACTORS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18} | _BINARY
_LIMIT = 2**60


class Quantity(str):
    """A number of bytes, at most 1Ei. Compare ``.bytes``, not the text: ``1Gi`` and ``1024Mi`` are the same size."""

    __slots__ = ()

    def __new__(cls, text: str) -> Self:
        """Raises ValueError, whose message says the cure, where the text is not a quantity."""
        if _parse(text) is None:
            raise ValueError(f"{text!r}: {QUANTITY.message}")
        return super().__new__(cls, text)

    @classmethod
    def of(cls, count: int) -> Self:
        """The shortest exact spelling with a binary suffix: ``of(2**30)`` is ``1Gi``, ``of(1000)`` is ``1000``."""
        for suffix, factor in reversed(_BINARY.items()):
            if count and count % factor == 0:
                return cls(f"{count // factor}{suffix}")
        return cls(str(count))

    @property
    def bytes(self) -> int:
        """Whole bytes, rounded up as Kubernetes does."""
        parsed = _parse(self)
        assert parsed is not None, "the constructor refused every other text"  # noqa: S101
        return parsed

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(
            cls._validate,
            core_schema.str_schema(),
            serialization=core_schema.plain_serializer_function_ser_schema(str, return_schema=core_schema.str_schema()),
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return append_rules({"type": "string", "maxLength": 32}, [QUANTITY])

    @classmethod
    def _validate(cls, text: str) -> Self:
        if violations := QUANTITY.violations(text):
            raise refuse(violations)
        return cls(text)


@lru_cache(maxsize=1024)  # the same few texts, over and over
def _parse(text: str) -> int | None:
    """Bytes, rounded up; None where the text is not a quantity within the limit."""
    parts = _PARTS.fullmatch(text)
    if parts is None:
        return None
    exact = Fraction(parts[1]) * _FACTORS[parts[2] or ""]
    return -int(-exact // 1) if exact <= _LIMIT else None


QUANTITY = Rule(
    cel=f"self.matches('{_PATTERN}') && quantity(self).compareTo(quantity('1Ei')) <= 0",
    says="a quantity is a number of bytes from 0 to 1Ei with an optional suffix Ki, Mi, Gi, Ti, Pi, k, M, G, T, P",
    cure="write it like 20Gi (as text, in quotes where it is only digits)",
    broken=lambda text: when(_parse(text) is None),
)
