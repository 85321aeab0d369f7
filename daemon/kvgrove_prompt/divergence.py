"""Where two prompts part: the first token that differs, and whose it is on either side. No text, no token ids."""

import msgspec

from kvgrove_prompt.prompt import Prompt, Segment
from kvgrove_protocol.chain import TOKEN_BYTES


class Parting(msgspec.Struct, frozen=True):
    """``position``: of the first token that differs. ``left``, ``right``: the segments around it, None at an end."""

    position: int
    left: Segment | None
    right: Segment | None


def parting(left: Prompt, right: Prompt) -> Parting | None:
    """None for equal prompts."""
    if left.tokens == right.tokens:
        return None
    position = common_tokens(left.tokens, right.tokens)
    return Parting(position, segment_at(left, position), segment_at(right, position))


def common_tokens(left: bytes, right: bytes) -> int:
    """How many leading tokens (little-endian uint32) are equal. By bisection over slices: they compare quickly."""
    low, high = 0, min(len(left), len(right)) // TOKEN_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        if left[low * TOKEN_BYTES : middle * TOKEN_BYTES] == right[low * TOKEN_BYTES : middle * TOKEN_BYTES]:
            low = middle
        else:
            high = middle - 1
    return low


def segment_at(prompt: Prompt, position: int) -> Segment | None:
    """The segment that holds token ``position``; None behind the end."""
    return next((each for each in prompt.segments if each.start <= position < each.end), None)
