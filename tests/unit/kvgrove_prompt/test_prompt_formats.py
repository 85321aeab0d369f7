"""Formats with tools and thinking, held to transformers' own rendering (PRO-02), and what must not move them."""

from __future__ import annotations

import json
import random
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from prompt_fixtures import (
    ALL_TEMPLATES,
    BOS,
    EXTRA_MARKERS,
    MARKERS,
    custom_tokenizer,
    prompt_tokenizer,
    write_tokenizer,
)
from prompt_formats import TOOLS, WITH_TOOLS
from transformers import PreTrainedTokenizerFast

from kvgrove_prompt.assembly import DocumentBody, Message, PrefixBody, ToolCall, assemble
from kvgrove_prompt.errors import InvalidMessages, TemplateUnsupported
from kvgrove_prompt.policy import Consecutive, Thinking
from kvgrove_prompt.raw import raw_prompt
from kvgrove_prompt.roles import SystemRole
from kvgrove_protocol.chain import DocumentRef, SpanKind

CALLS = (
    ToolCall("find_flight", '{"to": "BER", "from": "ZRH", "note": "a  b"}', "call00001"),
    ToolCall("now", "{}", "call00002"),
)
ERRAND = [
    Message("user", "When is the next flight?"),
    Message("assistant", None, tool_calls=CALLS),
    Message("tool", '{"at": "9:10"}', tool_call_id="call00001", name="find_flight"),
    Message("function", "8:55", tool_call_id="call00002", name="now"),
    Message("assistant", "At 9:10."),
    Message("human", "Book it."),
]


def _calling(arguments: str) -> Message:
    return Message("assistant", "", tool_calls=(ToolCall("now", arguments),))


def _reference_messages(messages: list[Message], *, parsed: bool) -> list[dict[str, Any]]:
    roles = {"function": "tool", "human": "user"}
    result = []
    for message in messages:
        plain: dict[str, Any] = {"role": roles.get(message.role, message.role), "content": message.text}
        if message.tool_calls:
            plain["tool_calls"] = [
                {
                    "type": "function",
                    "id": call.id,
                    "function": {
                        "name": call.name,
                        "arguments": json.loads(call.arguments) if parsed else call.arguments,
                    },
                }
                for call in message.tool_calls
            ]
        if message.tool_call_id:
            plain |= {"tool_call_id": message.tool_call_id, "name": message.name}
        result.append(plain)
    return result


def _reference(family: str, tmp_path: Path) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(write_tokenizer(tmp_path, family))


@pytest.mark.parametrize("family", WITH_TOOLS)
def test_pro_02_tools_calls_and_results_render_as_in_transformers(family: str, tmp_path: Path) -> None:
    tokenizer = prompt_tokenizer(family)
    assert tokenizer.template is not None
    policy = tokenizer.template.policy
    assert policy.tools
    assert policy.calls
    expected = _reference(family, tmp_path).apply_chat_template(
        _reference_messages(ERRAND, parsed=policy.parsed_arguments),
        tools=TOOLS,
        tokenize=False,
        add_generation_prompt=True,
    )
    prompt = assemble(tokenizer, ERRAND, tools=TOOLS)
    assert tokenizer.decode(prompt.ids) == expected
    kinds = {segment.origin: segment.kind for segment in prompt.segments}
    assert kinds["tools[0]"] == kinds["messages[1].tool_calls[0]"] == kinds["messages[2].content"] == SpanKind.PRIVATE
    order = [segment.origin for segment in prompt.segments if segment.message is not None]
    assert order == sorted(order, key=lambda origin: int(origin[9 : origin.index("]")]))


@pytest.mark.parametrize("family", ALL_TEMPLATES)
def test_pro_02_tokens_are_the_references_where_nobody_writes_markers(family: str, tmp_path: Path) -> None:
    """Cut at seams or tokenised whole: one sequence (PRO-11)."""
    chat = [
        Message("user", "Hello there, what is the cache of a prompt?"),
        Message("assistant", "What many requests share."),
        Message("user", "And naïve 你好 🙂 questions?"),
    ]
    expected = _reference(family, tmp_path).apply_chat_template(
        _reference_messages(chat, parsed=False), tokenize=True, add_generation_prompt=True, return_dict=False
    )
    assert assemble(prompt_tokenizer(family), chat).ids == expected


@pytest.mark.parametrize("family", WITH_TOOLS)
def test_pro_08_fifty_orders_of_keys_give_one_token_sequence(family: str) -> None:
    draw = random.Random(8)

    def shuffled(value: Any) -> Any:
        if isinstance(value, dict):
            items = list(value.items())
            draw.shuffle(items)
            return {key: shuffled(each) for key, each in items}
        return [shuffled(each) for each in value] if isinstance(value, list) else value

    tokenizer = prompt_tokenizer(family)
    chat = [Message("user", "fly")]
    sequences = {assemble(tokenizer, chat, tools=shuffled(TOOLS)).tokens for _ in range(50)}
    assert len(sequences) == 1
    assert assemble(tokenizer, chat, tools=TOOLS[::-1]).tokens not in sequences  # the order of lists is kept
    text = tokenizer.decode(assemble(tokenizer, chat, tools=TOOLS).ids)
    assert '"required": ["to", "from"]' in text


def test_pro_08_arguments_stay_as_the_model_wrote_them() -> None:
    tokenizer = prompt_tokenizer("qwen-thinking")
    written = '{"to":  "BER","from":"ZRH" }'
    chat = [
        Message("user", "fly"),
        Message("assistant", "", tool_calls=(ToolCall("now", written),)),
        Message("tool", "x"),
    ]
    assert written in tokenizer.decode(assemble(tokenizer, chat, tools=TOOLS).ids)
    parsed = tokenizer.decode(assemble(prompt_tokenizer("hermes"), chat, tools=TOOLS).ids)
    assert '{"to": "BER", "from": "ZRH"}' in parsed  # where the template writes it anew, its keys keep their order


@pytest.mark.parametrize("family", ALL_TEMPLATES)
def test_pro_01_one_bos_for_chats_completions_and_texts_rendered_before(family: str) -> None:
    tokenizer = prompt_tokenizer(family)
    bos = {token: tokenizer.encode_control(token)[0] for token in set(BOS.values())}
    ids = assemble(tokenizer, [Message("user", " ".join(bos))]).ids
    assert {token: ids.count(bos[token]) for token in bos} == {token: int(token == BOS.get(family)) for token in bos}
    assert raw_prompt(tokenizer, "hello").ids.count(0) <= 1


@pytest.mark.parametrize(("family", "default"), [("qwen", "helpful assistant"), ("hermes", "calls functions")])
def test_pro_05_a_default_system_text_is_the_templates_own_and_counted(family: str, default: str) -> None:
    tokenizer = prompt_tokenizer(family)
    without = assemble(tokenizer, [Message("user", "x")])
    text = tokenizer.decode(without.ids)
    sentence = "You are a helpful assistant." if family == "qwen" else "You are a model that calls functions."
    explicit = assemble(tokenizer, [Message("system", sentence), Message("user", "x")])
    empty = assemble(tokenizer, [Message("system", ""), Message("user", "x")])
    assert default in text
    assert explicit.tokens == without.tokens
    assert empty.count < without.count == sum(segment.end - segment.start for segment in without.segments)
    assert without.segments[0].kind is SpanKind.TEMPLATE


def test_pro_06_think_markers_are_the_templates_and_thoughts_are_words() -> None:
    tokenizer = prompt_tokenizer("qwen-thinking")
    assert tokenizer.template is not None
    assert tokenizer.template.policy.thinking is Thinking.APART
    think, end = (tokenizer.encode_control(marker)[0] for marker in ("<think>", "</think>"))
    reply = Message("assistant", "<think>\nhm </tool_call>\n</think>\n\nyes")
    apart = Message("assistant", "yes", reasoning="hm </tool_call>")
    shown = assemble(tokenizer, [Message("user", "?"), reply], add_generation_prompt=False)
    assert shown.tokens == assemble(tokenizer, [Message("user", "?"), apart], add_generation_prompt=False).tokens
    assert (shown.ids.count(think), shown.ids.count(end)) == (1, 1)
    assert tokenizer.encode_control("</tool_call>")[0] not in shown.ids
    assert "messages[1].reasoning" in {segment.origin for segment in shown.segments}
    history = assemble(tokenizer, [Message("user", "?"), reply, Message("user", "!")])
    assert think not in history.ids
    switched = assemble(tokenizer, [Message("user", "?")], options={"enable_thinking": False})
    assert switched.ids.count(think) == 1
    dropped = prompt_tokenizer("deepseek")
    assert dropped.template is not None
    assert dropped.template.policy.thinking is Thinking.DROPPED
    assert "hm" not in dropped.decode(assemble(dropped, [Message("user", "?"), reply, Message("user", "!")]).ids)


@pytest.mark.parametrize("family", ALL_TEMPLATES)
def test_pro_10_composed_and_decomposed_spellings_are_two_prompts_each_correct(family: str) -> None:
    tokenizer = prompt_tokenizer(family)
    texts = [unicodedata.normalize(form, "Grüße, naïve system") for form in ("NFC", "NFD")]
    prompts = [assemble(tokenizer, [Message("user", text)]) for text in texts]
    assert prompts[0].tokens != prompts[1].tokens
    for text, prompt in zip(texts, prompts, strict=True):
        assert text in tokenizer.decode(prompt.ids)


# -- PRO-04: what a template does not take -----------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["mistral", "gemma"])
def test_pro_04_two_turns_of_one_speaker_are_joined_where_the_template_wants_alternation(family: str) -> None:
    tokenizer = prompt_tokenizer(family)
    assert tokenizer.template is not None
    assert tokenizer.template.policy.consecutive is Consecutive.MERGE
    twice = [Message("user", "one"), Message("user", "two")]
    joined = assemble(tokenizer, twice)
    assert joined.tokens == assemble(tokenizer, [Message("user", "one\n\ntwo")]).tokens
    assert [segment.origin for segment in joined.segments if segment.message is not None] == [
        "messages[0].content",
        "messages[1].content",
    ]
    longer = [*twice, Message("assistant", "a"), Message("user", "b")]
    assert assemble(tokenizer, longer).tokens.startswith(assemble(tokenizer, twice, add_generation_prompt=False).tokens)


def test_pro_04_a_template_may_declare_what_it_takes() -> None:
    alternating = (
        "{#- kvgrove: system=refuse consecutive=refuse alias.narrator=assistant -#}"
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    )
    tokenizer = custom_tokenizer(alternating)
    assert assemble(tokenizer, [Message("narrator", "x"), Message("user", "y")]).count
    for chat, field in (
        ([Message("system", "x"), Message("user", "y")], "messages[0].role"),
        ([Message("user", "x"), Message("user", "y")], "messages[1].role"),
    ):
        with pytest.raises(InvalidMessages) as refused:
            assemble(tokenizer, chat)
        assert refused.value.field == field
    with pytest.raises(TemplateUnsupported, match="declares that it takes no system text"):
        assemble(tokenizer, [Message("user", "x")], prefix=PrefixBody("p", "declared"))
    with pytest.raises(TemplateUnsupported, match="declares 'system=maybe'"):
        assemble(custom_tokenizer("{# kvgrove: system=maybe #}{{ messages[0].content }}"), [Message("user", "x")])


@pytest.mark.parametrize(
    ("chat", "field"),
    [
        ([Message("prophet", "x")], "messages[0].role"),
        ([Message("user", None)], "messages[0].content"),
        ([Message("user", "x", tool_calls=CALLS)], "messages[0].tool_calls"),
        ([Message("user", "x"), Message("tool", "y")], "messages[1].role"),
        ([*ERRAND[:2], Message("tool", "y", tool_call_id="other")], "messages[2].tool_call_id"),
        (
            [*ERRAND[:1], Message("assistant", "", tool_calls=(ToolCall("now", "[1]"),))],
            "messages[1].tool_calls[0].function.arguments",
        ),
        (
            [*ERRAND[:1], Message("assistant", "", tool_calls=(ToolCall("now", '{"a":' * 50 + "1" + "}" * 50),))],
            "messages[1].tool_calls[0].function.arguments",
        ),
    ],
)
def test_pro_04_what_has_no_meaning_is_refused_by_name(chat: list[Message], field: str) -> None:
    with pytest.raises(InvalidMessages) as refused:
        assemble(prompt_tokenizer("hermes"), chat, tools=TOOLS)
    assert refused.value.field == field


def test_pro_04_tools_are_refused_where_the_template_has_no_place_for_them() -> None:
    with pytest.raises(InvalidMessages, match="tools: have no place") as refused:
        assemble(prompt_tokenizer("gemma"), [Message("user", "x")], tools=TOOLS)
    assert refused.value.field == "tools"
    with pytest.raises(InvalidMessages, match=r"messages\[1\].tool_calls: has no place"):
        assemble(prompt_tokenizer("deepseek"), ERRAND)


@pytest.mark.parametrize("family", WITH_TOOLS)
def test_pro_04_results_never_join_a_users_turn(family: str) -> None:
    tokenizer = prompt_tokenizer(family)
    chat = [*ERRAND[:4], Message("user", "and now?")]
    prompt = assemble(tokenizer, chat, tools=TOOLS)
    ids = prompt.ids
    by_origin = {segment.origin: segment for segment in prompt.segments}
    between = ids[by_origin["messages[3].content"].end : by_origin["messages[4].content"].start]
    control = {tokenizer.encode_control(marker)[0] for marker in [*MARKERS, *EXTRA_MARKERS]}
    assert not control.isdisjoint(between)


@pytest.mark.parametrize("content", ["text", ("te", "xt"), ("", "text"), ""])
def test_parts_and_empty_texts_keep_their_meaning(content: str | tuple[str, ...]) -> None:
    tokenizer = prompt_tokenizer()
    told = Message("user", content)
    assert assemble(tokenizer, [told]).tokens == assemble(tokenizer, [Message("user", told.text)]).tokens


@pytest.mark.parametrize(
    "options",
    [
        {"chat_template": "{{ x }}"},
        {"messages": []},
        {"tools": None},
        {"enable_thinking": "yes"},
        {"__class__": True},
        {"a b": 1},
        {f"x{i}": 1 for i in range(20)},
        {"x": {"chat_template": "{{ x }}"}},
    ],
)
def test_iso_15_no_template_and_no_text_comes_in_as_an_option(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessages, match="chat_template_kwargs"):
        assemble(prompt_tokenizer(), [Message("user", "x")], options=options)


def test_a_system_role_may_be_asked_for() -> None:
    tokenizer = prompt_tokenizer("chatml")
    folded = assemble(tokenizer, [Message("system", "a"), Message("user", "b")], system_role=SystemRole.FOLD)
    assert tokenizer.decode(folded.ids).startswith("<|im_start|>user\na\n\nb<|im_end|>")


# -- markers in anybody's words ----------------------------------------------------------------------------------------


def _everywhere(text: str) -> tuple[list[Message], list[dict[str, Any]], PrefixBody, list[DocumentBody]]:
    """A request with ``text`` in every place that somebody can write into."""
    half = len(text) // 2
    call = ToolCall(text, json.dumps({text: [text, {"k": text}]}), text)
    messages = [
        Message("system", text),
        Message("user", (text[:half], text[half:])),
        Message("assistant", f"<think>{text}</think>{text}", tool_calls=(call,)),
        Message("tool", text, tool_call_id=text, name=text),
        Message("assistant", text, reasoning=text),
        Message("user", f"a{text}b"),
    ]
    schema = {"type": "object", "properties": {text: {"type": "string", "description": text, "enum": [text]}}}
    tool = {"type": "function", "function": {"name": text, "description": text, "parameters": {**schema, text: text}}}
    documents = [DocumentBody(DocumentRef("d", b"\x01" * 32, 1), text, text, text)]
    return messages, [tool], PrefixBody(text, f"p {text}"), documents


@pytest.mark.parametrize("marker", [*MARKERS, *EXTRA_MARKERS])
@pytest.mark.parametrize("family", ["qwen-thinking", "hermes"])
def test_no_marker_in_anybodys_words_becomes_control_and_all_survive(family: str, marker: str) -> None:
    """The same request with a harmless word in every place has exactly as many of each control token."""
    tokenizer = prompt_tokenizer(family)

    def controls(text: str) -> list[int]:
        messages, tools, prefix, documents = _everywhere(text)
        prompt = assemble(tokenizer, messages, tools=tools, prefix=prefix, documents=documents)
        seen = tokenizer.decode(prompt.ids)
        escaped = json.dumps(text, ensure_ascii=False)[1:-1]
        assert max(seen.count(text), seen.count(escaped)) >= 12
        special = {tokenizer.encode_control(each)[0] for each in tokenizer.markers}
        return [token for token in prompt.ids if token in special]

    assert controls(marker) == controls("harmless")
