"""Assembly, whatever people write: spans tile, text survives, a prefix is a prefix of every request naming it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prompt_fixtures import ALL_TEMPLATES, EXTRA_MARKERS, MARKERS, prompt_tokenizer

from kvgrove_prompt.assembly import DocumentBody, Message, PrefixBody, assemble, assemble_prefix
from kvgrove_prompt.prompt import Prompt
from kvgrove_protocol.chain import DocumentRef, Span, SpanKind, check_spans

markers = st.sampled_from([*MARKERS, *EXTRA_MARKERS, "\n", "  ", "{{ bos_token }}", "</document>", "assistant"])
texts = st.lists(st.text(st.characters(codec="utf-8"), max_size=12) | markers, max_size=5).map("".join)
solid = texts.filter(lambda text: text.strip())
prefixes = st.builds(PrefixBody, st.just("p"), solid)
documents = st.lists(
    st.builds(
        lambda name, epoch, version, text: DocumentBody(DocumentRef(name, b"\x01" * 32, epoch), name, version, text),
        st.sampled_from(["a", "b", "c"]),
        st.integers(1, 5),
        st.text(max_size=5),
        texts,
    ),
    max_size=2,
)


@st.composite
def chats(draw: st.DrawFn) -> list[Message]:
    """Chats that every template here takes: maybe a system message, then turns in alternation."""
    system = [Message("system", draw(texts))] if draw(st.booleans()) else []
    turns = draw(st.integers(0, 2))
    rest = [Message(("user", "assistant")[i % 2], draw(texts)) for i in range(2 * turns + 1)]
    return system + rest


def _kinds(prompt: Prompt) -> list[SpanKind]:
    return [span.kind for span in prompt.spans]


@pytest.mark.parametrize("family", ALL_TEMPLATES)
@settings(max_examples=40, deadline=None)
@given(chat=chats(), prefix=prefixes, own=documents, more=documents, generation_prompt=st.booleans())
def test_a_prefix_is_a_prefix_of_every_request_that_names_it(
    *,
    family: str,
    chat: list[Message],
    prefix: PrefixBody,
    own: list[DocumentBody],
    more: list[DocumentBody],
    generation_prompt: bool,
) -> None:
    tokenizer = prompt_tokenizer(family)
    warm = assemble_prefix(tokenizer, prefix, own)
    prompt = assemble(tokenizer, chat, prefix=prefix, documents=[*own, *more], add_generation_prompt=generation_prompt)
    assert prompt.tokens.startswith(warm.tokens)
    assert prompt.spans[: len(warm.spans)] == warm.spans
    assert SpanKind.PRIVATE not in _kinds(warm)
    if family != "mistral":  # whose template puts the system text into the last turn
        declared = _kinds(warm)[1:] if warm.spans[0].kind is SpanKind.TEMPLATE else _kinds(warm)
        assert declared == [SpanKind.PREFIX] + [SpanKind.DOCUMENT] * len(own)
        assert [span.document for span in warm.spans if span.document] == [document.ref for document in own]


@pytest.mark.parametrize("family", ALL_TEMPLATES)
@settings(max_examples=40, deadline=None)
@given(chat=chats(), prefix=st.none() | prefixes, bodies=documents)
def test_spans_tile_and_text_survives(
    family: str, chat: list[Message], prefix: PrefixBody | None, bodies: list[DocumentBody]
) -> None:
    tokenizer = prompt_tokenizer(family)
    prompt = assemble(tokenizer, chat, prefix=prefix, documents=bodies)
    check_spans(prompt.spans, prompt.count)
    assert all(span.end > span.start for span in prompt.spans)
    assert [(segment.start, segment.end) for segment in prompt.segments] == [
        (span.start, span.end) for span in prompt.spans
    ]
    assert b"".join(prompt.slice(span.start, span.end) for span in prompt.spans) == prompt.tokens
    by_origin = {
        segment.origin: tokenizer.decode(prompt.ids[segment.start : segment.end]) for segment in prompt.segments
    }
    for index, message in enumerate(chat):
        thought = message.role == "assistant" and "</think>" in message.text  # some templates leave thoughts out
        if message.text.strip() and not thought:
            assert message.text.strip() in by_origin[f"messages[{index}].content"]
    if prefix is not None:
        assert prefix.text.strip() in by_origin["prefix:p"]
    for body in bodies:
        assert any(body.text in text for origin, text in by_origin.items() if origin == f"document:{body.name}") or (
            len({document.name for document in bodies}) < len(bodies)
        )


@pytest.mark.parametrize("family", ALL_TEMPLATES)
@settings(max_examples=40, deadline=None)
@given(chat=chats(), prefix=st.none() | prefixes, bodies=documents)
def test_nobodys_words_are_control_tokens(
    family: str, chat: list[Message], prefix: PrefixBody | None, bodies: list[DocumentBody]
) -> None:
    tokenizer = prompt_tokenizer(family)
    control = {tokenizer.encode_control(marker)[0] for marker in [*MARKERS, *EXTRA_MARKERS]}
    prompt = assemble(tokenizer, chat, prefix=prefix, documents=bodies)
    ids = prompt.ids
    for segment in prompt.segments:
        if segment.origin != "template":
            assert control.isdisjoint(ids[segment.start : segment.end])


@settings(max_examples=40, deadline=None)
@given(text=texts, other=texts, prefix=prefixes)
def test_blank_messages_leave_no_shared_scaffolding_behind_the_prefix(
    text: str, other: str, prefix: PrefixBody
) -> None:
    tokenizer = prompt_tokenizer("chatml")
    chat = [Message("user", ""), Message("assistant", ""), Message("user", text), Message("assistant", other)]
    prompt = assemble(tokenizer, chat, prefix=prefix)
    warm = assemble_prefix(tokenizer, prefix)
    assert all(span.kind is SpanKind.PRIVATE for span in prompt.spans[len(warm.spans) :])
    bare = assemble(tokenizer, chat)
    assert all(span.kind is SpanKind.PRIVATE for span in bare.spans)


@settings(max_examples=100, deadline=None)
@given(text=st.text(st.characters(codec="utf-8"), max_size=60).map(lambda text: text.replace("\ufffd", "?")))
@pytest.mark.parametrize("sentencepiece", [False, True])
def test_a_stream_adds_up_to_the_text(text: str, sentencepiece: bool) -> None:
    tokenizer = prompt_tokenizer(sentencepiece=sentencepiece)
    stream = tokenizer.stream()
    assert "".join(stream.push([i]) for i in tokenizer.encode_text(text)) + stream.flush() == text


@settings(max_examples=30, deadline=None)
@given(chat=chats(), prefix=prefixes)
def test_two_assemblies_of_one_request_are_equal(chat: list[Message], prefix: PrefixBody) -> None:
    """Marks are drawn anew each time; nothing of them is left (ROU-11: one answer for router, node and warm-up)."""
    tokenizer = prompt_tokenizer("llama3")
    assert assemble(tokenizer, chat, prefix=prefix) == assemble(tokenizer, chat, prefix=prefix)


def test_a_documents_text_does_not_change_what_stands_before_it() -> None:
    tokenizer = prompt_tokenizer()
    prefix = PrefixBody("p", "You are a sage.")
    one, two = (
        assemble(
            tokenizer,
            [Message("user", "why?")],
            prefix=prefix,
            documents=[DocumentBody(DocumentRef("d", digest, epoch), "d", "v1", text)],
        )
        for text, digest, epoch in (("old", b"\x01" * 32, 1), ("new and longer", b"\x02" * 32, 2))
    )
    assert (
        one.spans[:2]
        == two.spans[:2]
        == [
            Span(SpanKind.TEMPLATE, 0, one.spans[0].end),
            Span(SpanKind.PREFIX, one.spans[0].end, one.spans[1].end, name="p"),
        ]
    )
    assert one.slice(0, one.spans[1].end) == two.slice(0, two.spans[1].end)
    assert one.spans[2].document != two.spans[2].document
