"""Shapes hold for the whole text, in Python as in CEL."""

import re
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from kvgrove_crds import names
from kvgrove_crds.names import Shape

COMMIT = "12fd25f77366fa6b3b4b768ec3050bf629380bac"
CASES: list[tuple[Any, list[str], list[str]]] = [
    (names.DnsLabel, ["a", "support-bot", "9", "a" * 63], ["", "-a", "a-", "A", "a.b", "a" * 64, "a\n", "ä"]),
    (names.DnsName, ["node-1.example.com"], ["a..b", ".a", "a_b", "a.b\n"]),
    (names.Commit, [COMMIT], ["main", COMMIT[:39], COMMIT + "0", COMMIT.upper(), COMMIT + "\n"]),
    (names.Digest, ["sha256:" + "0" * 64], ["0" * 64, "sha256:" + "0" * 63, "md5:" + "0" * 64, "sha256:" + "G" * 64]),
    (names.Repository, ["gpt2", "Qwen/Qwen3-8B"], ["a/b/c", "/a", "a/", "https://x/y", "a/b@main"]),
    (names.AbsolutePath, ["/", "/models/x y", "/a..b"], ["", "a", "/..", "/a/../b", "/a/..", "/a\n"]),
    (names.RelativePath, ["", "a/b", "a..b"], ["/a", "..", "a/..", "../a"]),
    (names.Alias, ["gpt-4o", "Qwen/Qwen3-8B", "a:b"], ["team/chat", "a/b.c", "", " a", "-a"]),
    (names.Version, ["1", "2026-11-29", "v1.2+b"], ["", "v-", "a b", "v" * 65]),
    (names.Principal, ["insurer-a", "user@example.com", "a/b:c"], ["", "a b", "*"]),
    (names.GenerationPrefix, ["3fa9c1d2e4b7", "0" * 64], ["3fa9c1d2e4b", "0" * 65, "3FA9C1D2E4B7"]),
]


@pytest.mark.parametrize(("shape", "good", "bad"), CASES)
def test_shape(shape: Any, good: list[str], bad: list[str]) -> None:
    adapter = TypeAdapter[str](shape)
    for text in good:
        assert adapter.validate_python(text) == text
    for text in bad:
        with pytest.raises(ValidationError, match="; "):
            adapter.validate_python(text)


def test_patterns_mean_the_same_to_python_and_to_cel() -> None:
    shapes = [
        part for alias in vars(names).values() for part in getattr(alias, "__metadata__", ()) if isinstance(part, Shape)
    ]
    assert len(shapes) >= len(CASES)
    for shape in shapes:
        for pattern in filter(None, (shape.pattern, shape.never)):
            assert not re.search(r"['\"\\]", pattern), "quotes and backslashes would need escaping inside CEL"
            assert "(?" not in pattern, "RE2 has no look-around"
