"""Templates are other people's code: they render in processes that are killed at their bound (ISO-15)."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from prompt_fixtures import TEMPLATES

from kvgrove_prompt.conversation import Conversation, Turn
from kvgrove_prompt.errors import InvalidMessages, TemplateUnsupported
from kvgrove_prompt.render_pool import KILLS_AT_MOST, RenderPool
from kvgrove_prompt.template import ChatTemplate

CHAT = Conversation([Turn("user", ("hello",)), Turn("assistant", (" hi ",)), Turn("user", ("why?",))])
ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}{{ messages[0].content }}"


class Kills:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


@pytest.fixture(scope="module")
def pool() -> Iterator[RenderPool]:
    made = RenderPool(2, seconds=60.0)
    yield made
    made.close()


@pytest.fixture
def hasty() -> Iterator[tuple[RenderPool, Kills]]:
    kills = Kills()
    made = RenderPool(1, seconds=0.5, on_kill=kills)
    yield made, kills
    made.close()


@pytest.mark.parametrize("family", TEMPLATES)
def test_a_worker_renders_what_this_process_would(pool: RenderPool, family: str) -> None:
    there = ChatTemplate(TEMPLATES[family], named_tokens={"bos_token": "<s>", "eos_token": "</s>"}, renderer=pool)
    here = ChatTemplate(TEMPLATES[family], named_tokens={"bos_token": "<s>", "eos_token": "</s>"})
    assert there.render(CHAT) == here.render(CHAT)
    assert there.policy == here.policy


def test_refusals_come_back_as_they_were(pool: RenderPool) -> None:
    template = ChatTemplate("{{ raise_exception('no ' + messages[0].role) }}", named_tokens={}, renderer=pool)
    with pytest.raises(InvalidMessages, match=r"^messages: the model's chat template refuses them: no user") as refused:
        template.render(CHAT)
    assert refused.value.field == "messages"
    with pytest.raises(TemplateUnsupported, match="line 2"):
        ChatTemplate("\n{% for %}", named_tokens={}, renderer=pool)


@pytest.mark.parametrize(
    "hostile",
    [
        ENDLESS,
        "{% for i in range(99999) %}{% set x = ('a' * 999999) | upper %}{% endfor %}",
        "{{ ('a' * 30000) | replace('a', 'a' * 30000) }}",
    ],
)
def test_iso_15_a_template_that_takes_too_long_costs_a_worker_and_nothing_else(
    hasty: tuple[RenderPool, Kills], pool: RenderPool, hostile: str
) -> None:
    bounded, kills = hasty
    with pytest.raises((TemplateUnsupported, InvalidMessages)):
        ChatTemplate(hostile, named_tokens={}, renderer=bounded).render(CHAT)
    fine = ChatTemplate(TEMPLATES["chatml"], named_tokens={}, renderer=pool)
    assert [piece.text for piece in fine.render(CHAT) if piece.content == 0] == ["hello"]
    assert kills.count <= 1


def test_iso_15_constant_expressions_are_not_computed_in_this_process(hasty: tuple[RenderPool, Kills]) -> None:
    pool, _ = hasty
    with pytest.raises(TemplateUnsupported, match=r"to render|memory|fails|leaves out"):
        ChatTemplate("{{ 7 ** 9999999 }}", named_tokens={}, renderer=pool).render(CHAT)


def test_iso_15_a_template_that_was_killed_often_is_not_tried_again(hasty: tuple[RenderPool, Kills]) -> None:
    pool, kills = hasty
    template = ChatTemplate(ENDLESS, named_tokens={}, renderer=pool)
    for _ in range(KILLS_AT_MOST + 3):
        with pytest.raises(TemplateUnsupported, match=r"more than 0\.5 s to render"):
            template.render(CHAT)
    assert kills.count == KILLS_AT_MOST


def test_iso_15_memory_is_bounded_too(pool: RenderPool) -> None:
    with pytest.raises(TemplateUnsupported, match="memory"):
        ChatTemplate("{% set x = 'a' * 9999999999 %}{{ x | length }}", named_tokens={}, renderer=pool).render(CHAT)


def test_threads_share_the_workers(pool: RenderPool) -> None:
    template = ChatTemplate(TEMPLATES["chatml"], named_tokens={}, renderer=pool)
    expected = template.render(CHAT)
    results: list[object] = []

    def render() -> None:
        results.extend(template.render(CHAT) == expected for _ in range(10))

    threads = [threading.Thread(target=render) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 40
