"""Quantities keep their spelling and know their bytes."""

from fractions import Fraction

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from kvgrove_crds import PoolSpec, Quantity

FACTORS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("20Gi", 20 * 2**30),
        ("1.5Gi", 3 * 2**29),
        ("200G", 200 * 10**9),
        ("1k", 1000),
        ("0.5", 1),  # rounded up, as Kubernetes does
        ("1Ei", 2**60),
    ],
)
def test_known_sizes(text: str, count: int) -> None:
    assert Quantity(text).bytes == count


@pytest.mark.parametrize("text", ["", "20GB", "-1Gi", "1e3", "500m", "1 Gi", "Gi", "1.Gi", "2Ei", "٣Gi", "1Gi\n"])
def test_refused_with_the_cure(text: str) -> None:
    with pytest.raises(ValueError, match="write it like 20Gi"):
        Quantity(text)
    with pytest.raises(ValidationError, match="write it like 20Gi"):
        TypeAdapter(Quantity).validate_python(text)


@given(st.integers(0, 2**60))
def test_of_prints_what_parses_back(count: int) -> None:
    assert Quantity.of(count).bytes == count


@given(st.integers(0, 10**6), st.integers(0, 999_999), st.sampled_from(sorted(FACTORS)))
def test_any_spelling_keeps_its_text_and_its_size(whole: int, millionths: int, suffix: str) -> None:
    text = f"{whole}.{millionths:06d}{suffix}"
    pool = PoolSpec.model_validate({"host": "1Gi", "device": text})
    assert pool.device is not None
    exact = (whole + Fraction(millionths, 10**6)) * FACTORS[suffix]
    assert exact <= pool.device.bytes < exact + 1
    printed = yaml.safe_load(yaml.safe_dump(pool.model_dump(by_alias=True)))
    assert printed["device"] == text


def test_equal_sizes_in_other_words_are_other_texts() -> None:
    assert Quantity("1Gi").bytes == Quantity("1024Mi").bytes
    assert Quantity("1Gi") != Quantity("1024Mi")
