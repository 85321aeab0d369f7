"""Where a caller's cache breakpoints lie in an assembled prompt.

A breakpoint counts up to the last whole block before it: only whole blocks are stored. One whose prefix is shorter than
the model's minimum is not one, as Anthropic has it. Pure.
"""

from collections.abc import Sequence

from kvgrove_gateway.account import Mark
from kvgrove_gateway.ask import Breakpoint
from kvgrove_prompt.prompt import Prompt
from kvgrove_prompt.tokenizer import PromptTokenizer


def marks(
    breakpoints: Sequence[Breakpoint], prompt: Prompt, tokenizer: PromptTokenizer, *, block_size: int, minimum: int
) -> tuple[Mark, ...]:
    """``breakpoints`` as marks in order, those below ``minimum`` tokens left out."""
    found = []
    for each in breakpoints:
        tokens = _tokens_before(each, prompt, tokenizer)
        if tokens >= max(minimum, block_size):
            found.append(Mark(tokens // block_size * block_size, each.kept))
    return tuple(found)


def _tokens_before(breakpoint_: Breakpoint, prompt: Prompt, tokenizer: PromptTokenizer) -> int:
    own = [segment for segment in prompt.segments if segment.origin == breakpoint_.origin]
    if not own:
        return 0  # a blank text has no segment of its own
    start, end = own[0].start, own[-1].end
    if breakpoint_.text is None:
        return end
    return min(start + len(tokenizer.encode_text(breakpoint_.text)), end)
