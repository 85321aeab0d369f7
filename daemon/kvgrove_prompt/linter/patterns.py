"""What volatile text looks like. One pass of one expression without nested repetition: linear in the text."""

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

MAX_CHARS = 1 << 20
"""Of a text that are looked at."""


class Volatile(StrEnum):
    """What makes a text another one with each request."""

    DATE = "date"
    CLOCK = "clock"
    TIMESTAMP = "timestamp"
    UUID = "uuid"
    IDENTIFIER = "identifier"
    COUNTER = "counter"
    RANDOM_ORDER = "random_order"
    """The same things in another order."""
    VARIES = "varies"
    """It differed from request to request, whatever it is."""


class Match(NamedTuple):
    kind: Volatile
    start: int
    end: int


_MONTH = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sep(?:t(?:ember)?)?"
    r"|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)"
)
_TIME = r"(?:[01]?\d|2[0-3]):[0-5]\d"
_ZONE = r"(?:\s?[ap]m\b|z\b|\s?(?:utc|gmt)\b|[+-]\d\d:?\d\d)"

_PATTERNS = {
    Volatile.UUID: r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b",
    Volatile.DATE: (
        r"\b\d{4}[-/.](?:0[1-9]|1[0-2])[-/.](?:0[1-9]|[12]\d|3[01])(?!\d)"
        r"|\b(?:0?[1-9]|[12]\d|3[01])[./](?:0?[1-9]|1[0-2])[./](?:19|20)?\d\d\b"
        rf"|\b{_MONTH}\.?\s\d{{1,2}}(?:st|nd|rd|th)?,?\s(?:19|20)\d\d\b"
        rf"|\b\d{{1,2}}(?:st|nd|rd|th)?\.?\s{_MONTH}\.?,?\s(?:19|20)\d\d\b"
    ),
    Volatile.CLOCK: rf"(?:\b|(?<=t)){_TIME}:[0-5]\d(?:[.,]\d{{1,9}})?{_ZONE}?|\b{_TIME}{_ZONE}",
    Volatile.TIMESTAMP: r"\b1[5-9]\d{8}(?:\.\d{1,9}|\d{3}|\d{6})?\b",
    Volatile.COUNTER: (
        r"\b(?:request|turn|attempt|visit|visitor|session|iteration|call|message|query)"
        r"\s?(?:#|no\.?\s?|nr\.?\s?|number:?\s|count:?\s|:\s?)\d{1,12}\b"
    ),
    Volatile.IDENTIFIER: (
        r"\b(?:request|session|trace|run|conversation|correlation|span|thread|user|call)[-_ ]?id\s?[:=]\s?[\w.-]{4,128}"
        r"|\b(?=[0-9a-f]{0,127}\d)(?=[0-9a-f]{0,127}[a-f])[0-9a-f]{16,128}\b"
        r"|\b(?:req|sess|msg|run|call|conv|thread|trace)_[0-9a-z]{8,128}\b"
    ),
}
_ANY = re.compile("|".join(f"(?P<{kind.value}>{pattern})" for kind, pattern in _PATTERNS.items()), re.IGNORECASE)


def matches(text: str) -> Iterator[Match]:
    """What in ``text`` looks volatile, from left to right, not overlapping."""
    for found in _ANY.finditer(text, 0, MAX_CHARS):
        yield Match(Volatile(found.lastgroup or Volatile.VARIES), found.start(), found.end())
