"""An explanation without a fleet: two request bodies and a model's directory.

It shows what reuse can be at most: the second prompt right after the first was served, nothing given way in between.
Only texts that are in the bodies are known here, so declared prefixes and documents cannot be named.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kvgrove_cli.errors import UsageProblem
from kvgrove_gateway.ask import Ask, RawPrompt
from kvgrove_gateway.errors import BadRequest
from kvgrove_gateway.explain.bodies import AskedPrompt, parse_prompt
from kvgrove_gateway.explain.changes import changes
from kvgrove_gateway.explain.parting import Keyed, parting
from kvgrove_gateway.explain.pieces import at_their_places, pieces_of
from kvgrove_gateway.explain.report import PromptView, Report
from kvgrove_prompt.assembly import assemble
from kvgrove_prompt.bundle import pack
from kvgrove_prompt.prompt import Prompt
from kvgrove_prompt.raw import raw_prompt
from kvgrove_prompt.tokenizer import PromptTokenizer
from kvgrove_protocol.data import ExplainedRange
from kvgrove_protocol.errors import Malformed, Terminal
from kvgrove_protocol.reasons import MissReason

HERE = "once the prompt before was served"
"""Stands for the tier, where no fleet was asked."""


def explain(bodies: Sequence[tuple[str, dict[str, Any]]], model: Path, *, block_size: int) -> Report:
    """``bodies``: name and content of one or two files. Raises UsageProblem naming the file and the field."""
    try:
        tokenizer = PromptTokenizer.from_bundle(pack(model))
    except (Terminal, Malformed) as error:
        raise UsageProblem(f"--model {model}: {error.message}") from None
    asked = [_parsed(name, body) for name, body in bodies]
    prompts = [_assembled(name, each.ask, tokenizer) for (name, _), each in zip(bodies, asked, strict=True)]
    first = prompts[0]
    views = [_view(asked[0], first, [ExplainedRange(0, first.count)], tokenizer.decode, block_size)]
    if len(prompts) == 1:
        return Report(prompts=views, assumed=True)
    second = prompts[1]
    found = parting(Keyed(first, tokenizer.decode), Keyed(second, tokenizer.decode), block_size)
    common = found.block * block_size if found is not None else second.count
    views.append(_view(asked[1], second, _fates(second.count, common, block_size), tokenizer.decode, block_size))
    return Report(prompts=views, parting=found, changes=changes(asked[0].body, asked[1].body), assumed=True)


def _parsed(name: str, body: dict[str, Any]) -> AskedPrompt:
    try:
        asked = parse_prompt(body, name)
    except BadRequest as error:
        raise UsageProblem(error.message, field=error.field) from None
    if asked.ask.prefix is not None or asked.ask.documents:
        raise UsageProblem(
            f"{name}: kvgrove.prefix and kvgrove.documents name texts that only a fleet has: ask one with --url",
            field="kvgrove",
        )
    return asked


def _assembled(name: str, ask: Ask, tokenizer: PromptTokenizer) -> Prompt:
    prompt = ask.prompt
    try:
        if isinstance(prompt, RawPrompt):
            return raw_prompt(tokenizer, prompt.content)
        assembled = assemble(
            tokenizer, prompt.messages, tools=prompt.tools, options=prompt.options, open_ended=prompt.open_ended
        )
        return at_their_places(assembled, prompt.places)
    except Terminal as error:
        raise UsageProblem(f"{name}: {error.message}", field=error.field) from None


def _fates(count: int, common: int, block_size: int) -> list[ExplainedRange]:
    """Of a prompt of ``count`` tokens after one that it has ``common`` tokens in whole blocks in common with."""
    limit = max(count - 1, 0) // block_size * block_size
    reused = min(common // block_size * block_size, limit)
    ranges = [
        ExplainedRange(0, reused, HERE),
        ExplainedRange(reused, limit, reason=MissReason.NEW),
        ExplainedRange(limit, count, reason=MissReason.PARTIAL_BLOCK),
    ]
    return [each for each in ranges if each.end > each.start]


def _view(
    asked: AskedPrompt,
    prompt: Prompt,
    ranges: Sequence[ExplainedRange],
    decode: Callable[[Sequence[int]], str],
    block_size: int,
) -> PromptView:
    missed: dict[str, int] = {}
    for each in ranges:
        if each.reason is not None:
            missed[each.reason.value] = missed.get(each.reason.value, 0) + each.end - each.start
    return PromptView(
        model=asked.ask.model,
        namespace="",
        generation="",
        tokens=prompt.count,
        block_size=block_size,
        node="",
        reused_tokens=sum(each.end - each.start for each in ranges if each.tier),
        missed=missed,
        pieces=pieces_of(prompt, ranges, decode),
    )
