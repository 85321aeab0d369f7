"""What keeps prompts from being reused is found, with its place and never its text (PRO-07, PRO-09)."""

from __future__ import annotations

import uuid
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvgrove_prompt.errors import InvalidMessages
from kvgrove_prompt.linter.lint import CURES, MAX_FINDINGS, lint
from kvgrove_prompt.linter.patterns import Volatile, matches
from kvgrove_prompt.linter.sketch import MAX_SHAPES, MAX_WORDS, MAX_ZONES, StableSketch
from kvgrove_prompt.linter.stable_zone import Zone, zones_of_messages, zones_of_request
from kvgrove_prompt.roles import Message

RULES = "You answer questions about travel. Be kind, be brief, and never guess. " * 3


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Today is 2026-11-30.", Volatile.DATE),
        ("It is 2026-11-30T02:40:27Z now", Volatile.DATE),
        ("Today: 30.11.2026", Volatile.DATE),
        ("on Nov 30, 2026 we", Volatile.DATE),
        ("on 30 November 2026 we", Volatile.DATE),
        ("the time is 14:05:33 here", Volatile.CLOCK),
        ("now it is 2:05 PM", Volatile.CLOCK),
        ("at 1764470427 seconds", Volatile.TIMESTAMP),
        ("at 1764470427123", Volatile.TIMESTAMP),
        ("id 7f3c2a10-0b1c-4d2e-8f90-aabbccddeeff", Volatile.UUID),
        ("Session-ID: k3j2h1", Volatile.IDENTIFIER),
        ("trace 4bf92f3577b34da6a3ce929d0e0e4736", Volatile.IDENTIFIER),
        ("call_8h2k1l9qwe", Volatile.IDENTIFIER),
        ("This is request #1742 of today", Volatile.COUNTER),
        ("turn: 12", Volatile.COUNTER),
    ],
)
def test_pro_07_volatile_text_is_found(text: str, kind: Volatile) -> None:
    found = list(matches(text))
    assert kind in {each.kind for each in found}
    assert all(0 <= each.start < each.end <= len(text) for each in found)


@pytest.mark.parametrize(
    "text",
    [
        RULES,
        "Rooms 101 to 340, floors 1-9, about 3.5 hours, version 1.2.3 and 50/50.",
        "We open at 9:30 and close at 18:00.",
        "Step 1: ask. Step 2: answer in at most 3 sentences of 20 words.",
        "The decade, the facade and deadbeef; call 112 for help; ISO 8601; RFC 2119.",
        'Return JSON like {"a": [1, 2], "b": "c"} with a ratio of 16:9.',
    ],
)
def test_stable_text_is_left_alone(text: str) -> None:
    assert list(matches(text)) == []


def test_findings_hold_places_and_cures_and_no_text() -> None:
    request = {
        "tools": [{"type": "function", "function": {"name": "f", "description": "as of 2026-11-30"}}],
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "Be kind. secret 12:00:01"}]},
            {"role": "developer", "content": "request #5"},
            {"role": "user", "content": "It is 2026-11-30."},
            {"role": "system", "content": "12:00:02"},
        ],
    }
    found = lint(zones_of_request(request))
    assert [(each.zone, each.kind) for each in found] == [
        ("tools", Volatile.DATE),
        ("messages[0].content", Volatile.CLOCK),
        ("messages[1].content", Volatile.COUNTER),
    ]
    assert "secret" not in str(found)
    assert all(each.cure for each in found)
    assert CURES.keys() == set(Volatile)


def test_anthropics_form_and_assembled_messages_are_read_too() -> None:
    request = {"system": [{"type": "text", "text": "2026-11-30"}], "messages": [{"role": "user", "content": "x"}]}
    assert [each.zone for each in lint(zones_of_request(request))] == ["system"]
    zones = zones_of_messages([Message("developer", "2026-11-30"), Message("user", "12:00:01")], [])
    assert [each.zone for each in lint(zones)] == ["messages[0].content"]


@pytest.mark.parametrize("request_", [[], "x", None, {}, {"messages": "x"}, {"messages": []}])
def test_what_is_no_request_is_refused(request_: object) -> None:
    with pytest.raises(InvalidMessages):
        zones_of_request(request_)


def test_i11_findings_are_bounded() -> None:
    assert len(lint([Zone("system", "2026-11-30 " * 1000)])) == MAX_FINDINGS


def test_pro_07_the_position_that_varies_is_learned() -> None:
    sketch = StableSketch(b"k")
    words = 16  # of the sentence, punctuation included
    assert sketch.observe("ns", [Zone("system", f"{RULES} For Ann, weather mild. {RULES}")]) == []
    for count, (name, weather) in enumerate((("Bob", "mild"), ("Cy", "wild"), ("Di", "cold")), 1):
        [found] = sketch.observe("ns", [Zone("system", f"{RULES} For {name}, weather {weather}. {RULES}")])
        assert (found.kind, found.seen, found.learned) == (Volatile.VARIES, count, True)
        assert found.start == 3 * words + 1
    [found] = sketch.observe("ns", [Zone("system", f"{RULES} For Ann, {uuid.UUID(int=7)}. {RULES}")])
    assert (found.kind, found.start) == (Volatile.UUID, 3 * words + 3)
    assert sketch.observe("ns", [Zone("system", f"{RULES} For Ann, weather mild. {RULES}")]) == []


def test_pro_09_the_same_things_in_another_order_are_told_apart() -> None:
    sketch = StableSketch(b"k")
    names = [f"tool_{letter}" for letter in "abcdefgh"]
    sketch.observe("ns", [Zone("tools", " ".join(names))])
    [found] = sketch.observe("ns", [Zone("tools", " ".join(names[::-1]))])
    assert found.kind is Volatile.RANDOM_ORDER
    [more] = sketch.observe("ns", [Zone("tools", " ".join([*names, "tool_i"]))])
    assert (more.kind, more.start) == (Volatile.VARIES, len(names))


def test_applications_of_one_namespace_are_not_compared_with_each_other() -> None:
    sketch = StableSketch(b"k")
    texts = [" ".join(f"{letter}{number}" for number in range(20)) for letter in "abcdefgh"]
    for _ in range(3):
        assert [found for text in texts[:MAX_SHAPES] for found in sketch.observe("ns", [Zone("system", text)])] == []
    assert sketch.observe("other", [Zone("system", texts[0] + " x")]) == []


def test_i11_and_i12_the_sketch_is_bounded_and_holds_no_text() -> None:
    sketch = StableSketch(b"k")
    for number in range(2 * MAX_ZONES):
        sketch.observe(f"ns{number}", [Zone("system", "secret word " * MAX_WORDS)])
    assert b"secret" not in msgspec.msgpack.encode(repr(vars(sketch)))
    sketch.forget(f"ns{2 * MAX_ZONES - 1}")
    assert sketch.clear() == MAX_ZONES - 1
    assert sketch.clear() == 0


@settings(max_examples=150, deadline=None)
@given(text=st.text(alphabet=st.sampled_from("0123456789abcdef-:./ TZmayjun#_,pid="), max_size=300))
def test_any_text_has_matches_in_order_that_do_not_overlap(text: str) -> None:
    ends = [0]
    for found in matches(text):
        assert ends[-1] <= found.start < found.end <= len(text)
        ends.append(found.end)


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["messages", "role", "content", "system", "tools", "text", "x"]), inner, max_size=4
        )
    ),
    max_leaves=15,
)


@settings(max_examples=150, deadline=None)
@given(body=json_values)
def test_any_body_is_looked_at_or_refused(body: Any) -> None:
    try:
        zones = zones_of_request(body)
    except InvalidMessages:
        return
    lint(zones)
    StableSketch(b"k").observe("ns", zones)
