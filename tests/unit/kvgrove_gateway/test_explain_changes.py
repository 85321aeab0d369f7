"""What differs between two request bodies is named block by block (PRO-09)."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvgrove_gateway.explain.changes import MAX_CHANGES, changes


def text(content: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": content, **more}


REMINDER = text("<reminder>keep it short</reminder>")
SESSION: dict[str, Any] = {
    "model": "team/bot",
    "system": [text("You help."), text("House rules.")],
    "tools": [{"name": "read", "input_schema": {"type": "object"}}],
    "messages": [
        {"role": "user", "content": [REMINDER, text("Look at the log.")]},
        {"role": "assistant", "content": [text("I did.")]},
        {"role": "user", "content": [text("And now?")]},
    ],
}


def told(one: dict[str, Any], other: dict[str, Any]) -> list[tuple[str, str, str | None, str | None]]:
    return [(each.kind, each.what, each.a, each.b) for each in changes(one, other)]


def test_pro_09_a_block_that_moves_on_resume_is_named_as_moved() -> None:
    resumed = copy.deepcopy(SESSION)
    resumed["messages"][0]["content"].remove(REMINDER)
    resumed["messages"][2]["content"].append(REMINDER)
    assert told(SESSION, resumed) == [
        ("moved", "text block", "messages[0].content[0]", "messages[2].content[1]"),
    ]


def test_pro_09_tools_that_appear_in_a_session_are_named() -> None:
    later = copy.deepcopy(SESSION)
    later["tools"] = [{"name": "fetch", "input_schema": {}}, *SESSION["tools"], {"name": "write", "input_schema": {}}]
    assert told(SESSION, later) == [
        ("appeared", "tool fetch", None, "tools[0]"),
        ("appeared", "tool write", None, "tools[2]"),
    ]
    assert told(later, SESSION) == [("gone", "tool fetch", "tools[0]", None), ("gone", "tool write", "tools[2]", None)]


def test_an_edited_block_is_changed_and_not_gone_and_appeared() -> None:
    edited = copy.deepcopy(SESSION)
    edited["system"][1] = text("House rules of today.")
    edited["tools"][0]["input_schema"] = {"type": "object", "properties": {}}
    assert told(SESSION, edited) == [
        ("changed", "tool read", "tools[0]", "tools[0]"),
        ("changed", "system block", "system[1]", "system[1]"),
    ]


def test_a_next_turn_is_no_change() -> None:
    longer = copy.deepcopy(SESSION)
    longer["messages"] += [{"role": "assistant", "content": "Nothing."}, {"role": "user", "content": "Thanks."}]
    assert told(SESSION, longer) == []
    assert [each[:2] for each in told(longer, SESSION)] == [("gone", "text block")] * 2


def test_marks_key_order_and_the_form_of_a_lone_text_are_no_change() -> None:
    one = {"messages": [{"role": "user", "content": "Hi"}], "tools": [{"name": "t", "input_schema": {"a": 1, "b": 2}}]}
    other = {
        "tools": [{"input_schema": {"b": 2, "a": 1}, "name": "t", "cache_control": {"type": "ephemeral"}}],
        "messages": [{"content": [text("Hi", cache_control={"type": "ephemeral"})], "role": "user"}],
    }
    assert told(one, other) == []


def test_an_openai_tool_is_named_by_its_function() -> None:
    one = {"messages": [{"role": "user", "content": "x"}]}
    other = one | {"tools": [{"type": "function", "function": {"name": "look_up"}}]}
    assert [each[1] for each in told(one, other)] == ["tool look_up"]


def test_i11_bounded_no_more_changes_are_listed_than_anybody_reads() -> None:
    one = {"messages": [{"role": "user", "content": f"a{number}"} for number in range(500)]}
    other = {"messages": [{"role": "user", "content": f"b{number}"} for number in range(500)]}
    assert len(changes(one, other)) == MAX_CHANGES


@pytest.mark.parametrize("seed", range(20))
def test_a_shuffle_names_as_few_moves_as_there_are(seed: int) -> None:
    order = list(range(12))
    one = {"messages": [{"role": "user", "content": str(number)} for number in order]}
    at = random.Random(seed).randrange(11)
    order.append(order.pop(at))
    other = {"messages": [{"role": "user", "content": str(number)} for number in order]}
    assert [each[0] for each in told(one, other)] == ["moved"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
BODY = st.fixed_dictionaries({}, optional=dict.fromkeys(("tools", "system", "messages"), JSON))


@settings(suppress_health_check=[HealthCheck.too_slow])  # the machine is at times
@given(BODY, BODY)
def test_any_two_objects_can_be_compared(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert changes(one, one) == []
    changes(one, other)
