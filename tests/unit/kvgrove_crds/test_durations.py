"""Durations keep their spelling and know their seconds."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from kvgrove_crds import Duration, FreshnessSpec, TtlSpec

MILLISECONDS = {"h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0s", 0),
        ("1h30m", 5400),
        ("90m", 5400),
        ("1.5h", 5400),
        ("250ms", 0.25),
        ("87600h", 315_360_000),
        ("30m1h", 5400),
    ],
)
def test_known_lengths(text: str, seconds: float) -> None:
    assert Duration(text).seconds == seconds


@pytest.mark.parametrize("text", ["", "7d", "30", "-1s", "1h 30m", "h", "1us", "87601h", "1s\n", "٣s", "1m" * 17])
def test_refused_with_the_cure(text: str) -> None:
    with pytest.raises(ValueError, match="7 days are 168h"):
        Duration(text)
    with pytest.raises(ValidationError, match="7 days are 168h"):
        TypeAdapter(Duration).validate_python(text)


@given(st.integers(0, 87_600 * MILLISECONDS["h"]))
def test_of_prints_what_parses_back(milliseconds: int) -> None:
    assert Duration.of(milliseconds).seconds == milliseconds / 1000


def test_of_is_the_spelling_people_expect() -> None:
    assert [Duration.of(n) for n in (0, 1, 30_000, 5_400_000, 3_600_001)] == ["0s", "1ms", "30s", "1h30m", "1h1ms"]


@given(st.lists(st.tuples(st.integers(0, 999), st.sampled_from(sorted(MILLISECONDS))), min_size=1, max_size=5))
def test_any_spelling_keeps_its_text_and_its_length(parts: list[tuple[int, str]]) -> None:
    text = "".join(f"{count}{unit}" for count, unit in parts)
    total = sum(count * MILLISECONDS[unit] for count, unit in parts)
    duration = TypeAdapter(Duration).validate_python(text)
    assert duration.seconds == total / 1000
    assert yaml.safe_load(yaml.safe_dump(TypeAdapter(Duration).dump_python(duration))) == text


@pytest.mark.parametrize(
    ("text", "allowed"), [("999ms", False), ("1s", True), ("24h", True), ("24h1ms", False), ("1d", False)]
)
def test_bounds_of_a_field_are_inclusive(text: str, allowed: bool) -> None:
    if allowed:
        assert FreshnessSpec.model_validate({"lease": text}).lease == text
    else:
        with pytest.raises(ValidationError, match="a duration from 1s to 24h"):
            FreshnessSpec.model_validate({"lease": text})


def test_the_longest_lifetime_is_ten_years() -> None:
    assert TtlSpec.model_validate({"duration": "87600h"}).duration.seconds == 315_360_000
