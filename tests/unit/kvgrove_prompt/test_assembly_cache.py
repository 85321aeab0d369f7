"""A known history costs only its new text; nobody meets another's entries; old ones are gone when they are old."""

from __future__ import annotations

import pytest
from prompt_fixtures import ALL_TEMPLATES, prompt_tokenizer

from kvgrove_prompt.assembly import DocumentBody, Message, PrefixBody, assemble
from kvgrove_prompt.assembly_cache import AssemblyCache, NamespaceState, Scope
from kvgrove_prompt.prompt import Prompt
from kvgrove_prompt.units import Tokenise
from kvgrove_protocol.chain import DocumentRef

V1 = NamespaceState(b"v1", frozenset({"d@1"}))
ANN = Scope("ns", b"ann", b"bundle", b"v1")
BOB = Scope("ns", b"bob", b"bundle", b"v1")


class Watch:
    def __init__(self) -> None:
        self.known = self.computed = self.gone = 0

    def looked_up(self, _namespace: str, known: int, computed: int) -> None:
        self.known, self.computed = known, computed

    def gave_way(self, _namespace: str, entries: int) -> None:
        self.gone += entries


class Rig:
    def __init__(self, family: str = "chatml", max_bytes: int = 1 << 20, share: float = 1.0) -> None:
        self.watch = Watch()
        self.tokenizer = prompt_tokenizer(family)
        self.cache = AssemblyCache(max_bytes, watcher=self.watch, namespace_share=share)
        self.cache.follow({"ns": V1, "other": V1})

    def ask(self, chat: list[Message], scope: Scope = ANN, document: int | None = None) -> Prompt:
        bodies = (
            [] if document is None else [DocumentBody(DocumentRef("d", b"\x01" * 32, document), "d", "v", "long " * 9)]
        )
        return assemble(
            self.tokenizer,
            chat,
            prefix=PrefixBody("p", "Be kind. " * 5),
            documents=bodies,
            texts=self.cache.texts(self.tokenizer, scope),
        )


def turns(count: int) -> list[Message]:
    return [Message(("user", "assistant")[n % 2], f"turn {n} says much " * 4) for n in range(2 * count - 1)]


@pytest.mark.parametrize("family", ALL_TEMPLATES)
def test_with_and_without_a_memory_prompts_are_equal(family: str) -> None:
    rig = Rig(family)
    for count in (1, 2, 3, 3, 2):
        assert rig.ask(turns(count)) == assemble(rig.tokenizer, turns(count), prefix=PrefixBody("p", "Be kind. " * 5))


def test_a_turn_on_a_known_history_costs_only_its_new_text() -> None:
    rig = Rig()
    for count in range(1, 20):
        rig.ask(turns(count))
    whole = rig.ask(turns(20))
    new = len(rig.tokenizer.encode_text(turns(20)[-1].text)) + len(rig.tokenizer.encode_text(turns(20)[-2].text))
    assert rig.watch.computed <= new + 16
    assert rig.watch.known > whole.count / 2
    rig.ask(turns(20))
    assert rig.watch.computed == 0


def test_i2_nobody_meets_what_another_said() -> None:
    rig = Rig()
    rig.ask(turns(3))
    for scope in (BOB, Scope("other", b"ann", b"bundle", b"v1"), Scope("ns", b"ann", b"another", b"v1")):
        rig.ask(turns(3), scope)
        assert rig.watch.known == 0
    rig.ask(turns(3))
    assert rig.watch.computed == 0


def test_a_text_behind_another_beginning_is_not_met() -> None:
    rig = Rig()
    rig.ask([Message("user", "one"), Message("assistant", "the same"), Message("user", "x")])
    rig.ask([Message("user", "two"), Message("assistant", "the same"), Message("user", "x")])
    assert rig.watch.known < rig.watch.known + rig.watch.computed
    assert rig.watch.computed >= len(rig.tokenizer.encode_text("the same"))


@pytest.mark.parametrize("after", [{"ns": NamespaceState(b"v2", V1.documents)}, {"other": V1}])
def test_i3_a_purge_or_the_end_of_a_namespace_forgets_it(after: dict[str, NamespaceState]) -> None:
    rig = Rig()
    rig.ask(turns(3))
    rig.ask(turns(3), Scope("other", b"ann", b"bundle", b"v1"))
    rig.cache.follow({"other": V1} | after)
    assert rig.cache.size_of("ns") == 0
    assert rig.cache.size_of("other") == rig.cache.size > 0
    rig.ask(turns(3))  # resolved under the older plan: neither met nor kept
    assert (rig.watch.known, rig.cache.size_of("ns")) == (0, 0)


def test_i3_a_documents_change_forgets_what_stands_behind_it() -> None:
    rig = Rig()
    rig.ask(turns(2), document=1)
    behind = rig.cache.size
    rig.ask(turns(2))
    rig.cache.follow({"ns": NamespaceState(b"v1", frozenset({"d@2"})), "other": V1})
    assert 0 < rig.cache.size < behind
    rig.ask(turns(2), document=1)  # an older document's text is not kept
    size = rig.cache.size
    rig.ask(turns(2), document=2)
    assert rig.cache.size > size
    assert rig.watch.computed > len(rig.tokenizer.encode_text("long " * 9))


def test_an_erasure_forgets_all_also_what_is_under_way() -> None:
    rig = Rig()
    rig.ask(turns(2))
    held = len(rig.cache)
    cleared: list[int] = []

    class Erasing:
        """A tokenizer that is in the middle of its work when the erasure comes."""

        def encode_parts(self, parts: list[str], *, start: bool = False) -> object:
            cleared.append(rig.cache.clear())
            return rig.tokenizer.encode_parts(parts, start=start)

    texts: Tokenise = rig.cache.texts(Erasing(), BOB)  # type: ignore[arg-type]
    assemble(rig.tokenizer, turns(2), texts=texts)
    assert cleared[0] == held
    assert len(rig.cache) == rig.cache.size == 0
    rig.ask(turns(2))
    assert len(rig.cache) == held


def test_i11_a_flood_never_pushes_another_below_an_equal_share() -> None:
    rig = Rig(max_bytes=60_000)
    rig.ask(turns(3), BOB)
    mine = rig.cache.size
    assert mine < 20_000
    for number in range(60):
        rig.ask([Message("user", f"flood {number} " * 30)], ANN)
    assert rig.cache.size <= 60_000
    assert rig.watch.gone > 10
    rig.ask(turns(3), BOB)
    assert rig.watch.computed == 0


def test_i11_one_namespace_takes_its_share_and_no_more() -> None:
    rig = Rig(max_bytes=80_000, share=0.25)
    for number in range(60):
        rig.ask([Message("user", f"flood {number} " * 30)], Scope("ns", b"%d" % number, b"b", b"v1"))
        assert rig.cache.size_of("ns") <= 20_000


def test_ends_give_way_before_beginnings() -> None:
    rig = Rig(max_bytes=9_000)
    for _ in range(2):
        for count in range(1, 12):
            rig.ask(turns(count))
    rig.ask(turns(1))
    assert rig.watch.computed == 0
