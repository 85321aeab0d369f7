"""Where two prompts part, and a prompt's text by fate (I10, MET-06)."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from prompt_fixtures import prompt_tokenizer

from kvgrove_gateway.explain.parting import Keyed, parting
from kvgrove_gateway.explain.pieces import pieces_of
from kvgrove_prompt.assembly import DocumentBody, Message, PrefixBody, assemble
from kvgrove_prompt.prompt import Prompt
from kvgrove_protocol.chain import DocumentRef, block_keys, folds
from kvgrove_protocol.data import ExplainedRange
from kvgrove_protocol.reasons import MissReason

B = 16
SECRET = "nobody sent this text"
SESSION = ["Tell me of the cache.", "It holds what requests share.", "And a question?"]


def prompt(texts: list[str], *, prefix: bool = False, document: str = "") -> Prompt:
    roles = ("user", "assistant")
    messages = [Message(role=roles[at % 2], content=each) for at, each in enumerate(texts)]
    return assemble(
        prompt_tokenizer(),
        messages,
        prefix=PrefixBody(name="rules", text=f"{SECRET}. " * 5) if prefix else None,
        documents=[DocumentBody(ref=DocumentRef("law", b"d" * 32, 1), name="law", version="1", text=document)]
        if document
        else [],
    )


def keyed(made: Prompt, *, realm: bytes = b"r" * 32, namespace: str = "uid", epoch: int = 1) -> Keyed:
    return Keyed(
        prompt=made,
        decode=prompt_tokenizer().decode,
        keys=block_keys(b"k" * 32, made.tokens, folds(made.spans, realm, B), block_size=B),
        namespace=namespace,
        documents=(("law", epoch),),
    )


def test_the_first_differing_token_is_named_with_its_message_and_text() -> None:
    edited = [SESSION[0], "It holds NOTHING that requests share.", SESSION[2]]
    found = parting(keyed(prompt(SESSION)), keyed(prompt(edited)), B)
    assert found is not None
    assert found.because == "tokens"
    assert found.a is not None
    assert found.b is not None
    assert (found.a.origin, found.a.message) == (found.b.origin, found.b.message) == ("messages[1].content", 1)
    assert found.a.text is not None
    assert found.b.text is not None
    assert "what requests".startswith(found.a.text.strip()[:4])
    assert found.b.before is not None
    assert found.b.before.endswith("holds")
    ids = prompt(SESSION).ids, prompt(edited).ids
    assert ids[0][: found.token] == ids[1][: found.token]
    assert ids[0][found.token] != ids[1][found.token]
    assert found.block == found.token // B
    assert f"token {found.token}" in found.summary


def test_a_next_turn_goes_on_where_the_prompt_before_ended() -> None:
    first = prompt(SESSION[:1])
    found = parting(keyed(first), keyed(prompt(SESSION)), B)
    assert found is not None
    assert found.token == first.count
    assert (found.a, found.because) == (None, "nothing" if first.count % B == 0 else found.because)


def test_equal_prompts_do_not_part() -> None:
    assert parting(keyed(prompt(SESSION)), keyed(prompt(SESSION)), B) is None


def test_equal_tokens_of_callers_that_are_kept_apart_part_by_caller() -> None:
    made = prompt(SESSION, prefix=True)
    found = parting(keyed(made), keyed(made, realm=b"s" * 32), B)
    assert found is not None
    assert found.because == "caller"
    private = next(each.start for each in made.segments if each.origin == "messages[0].content")
    assert found.block == private // B
    assert (found.a, found.b) == (None, None)


def test_versions_of_a_document_and_namespaces_part_before_any_token() -> None:
    made = prompt(SESSION, document="The law is long. " * 9)
    reference = DocumentRef("law", b"d" * 32, 2)
    spans = [each if each.document is None else replace(each, document=reference) for each in made.spans]
    newer = Prompt(made.tokens, spans, made.segments)
    found = parting(keyed(made), keyed(newer, epoch=2), B)
    assert found is not None
    assert found.because == "document"
    apart = parting(keyed(made), keyed(made, namespace="other"), B)
    assert apart is not None
    assert (apart.because, apart.block) == ("namespace", 0)


def test_i12_quiet_declared_texts_are_told_to_nobody() -> None:
    made = prompt(SESSION, prefix=True, document="The law is long.")
    pieces = pieces_of(made, [ExplainedRange(0, made.count, "host")], prompt_tokenizer().decode)
    texts = {each.origin: each.text for each in pieces}
    assert texts["prefix:rules"] is None
    assert texts["document:law"] is None
    assert texts["messages[0].content"] is not None
    assert SECRET not in repr(pieces)
    other = prompt(SESSION, prefix=False)
    found = parting(keyed(made), keyed(other), B)
    assert SECRET not in repr(found)


@given(st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=3), st.data())
def test_i10_pieces_tile_the_prompt_and_their_texts_are_the_segments(texts: list[str], data: st.DataObject) -> None:
    made = prompt([f"x{each}🙂🌲y" for each in texts])
    cuts = sorted(data.draw(st.sets(st.integers(1, made.count - 1), max_size=4)))
    fates = [("host", None), ("", MissReason.NEW), ("", MissReason.EVICTED)]
    ranges = [
        ExplainedRange(begin, end, *fates[at % 3]) for at, (begin, end) in enumerate(pairwise([0, *cuts, made.count]))
    ]
    decode = prompt_tokenizer().decode
    pieces = pieces_of(made, ranges, decode)
    assert [each.start for each in pieces] == [0, *(each.end for each in pieces[:-1])]
    assert pieces[-1].end == made.count
    for segment in made.segments:
        inside = [each for each in pieces if segment.start <= each.start < segment.end]
        assert "".join(each.text or "" for each in inside) == decode(made.ids[segment.start : segment.end])
    for each in ranges:
        inside = [piece for piece in pieces if each.start <= piece.start < each.end]
        assert {(piece.tier, piece.reason) for piece in inside} == {
            (each.tier, each.reason.value if each.reason else None)
        }
