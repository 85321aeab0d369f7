"""Where two prompts part: the first token that differs, whose text it is, and the block at which reuse ends. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvgrove_gateway.explain.pieces import Decode, tells_text
from kvgrove_gateway.explain.report import Parting, Side
from kvgrove_prompt.prompt import Prompt
from kvgrove_protocol.chain import TOKEN_BYTES

CONTEXT_TOKENS = 12
"""Shown before the first differing token."""


@dataclass(frozen=True)
class Keyed:
    """A prompt with what its keys depend on. ``keys`` may be empty where no fleet is there to key it."""

    prompt: Prompt
    decode: Decode
    keys: Sequence[bytes] = ()
    namespace: str = ""
    generation: bytes = b""
    documents: tuple[tuple[str, int], ...] = ()
    """(id, epoch) of those it refers to, in order."""


def parting(one: Keyed, other: Keyed, block_size: int) -> Parting | None:
    """None for two prompts that are the same in tokens and keys."""
    token = _common_tokens(one.prompt.tokens, other.prompt.tokens)
    block, because = _block(one, other, token, block_size)
    if because == "nothing" and one.prompt.count == other.prompt.count:
        return None
    a, b = _side(one, token), _side(other, token)
    reuse = f"what is reused of one for the other ends before token {block * block_size} (block {block})"
    return Parting(
        token=token, block=block, because=because, a=a, b=b, summary=_summary(a, b, token, because=because, reuse=reuse)
    )


def _common_tokens(one: bytes, other: bytes) -> int:
    """How many leading tokens are equal."""
    low, high = 0, min(len(one), len(other)) // TOKEN_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        if one[: middle * TOKEN_BYTES] == other[: middle * TOKEN_BYTES]:
            low = middle
        else:
            high = middle - 1
    return low


def _block(one: Keyed, other: Keyed, token: int, block_size: int) -> tuple[int, str]:
    """The first block whose keys differ, and why."""
    by_tokens = token // block_size
    both_full = min(one.prompt.count, other.prompt.count) // block_size
    if one.namespace != other.namespace:
        return 0, "namespace"
    if one.generation != other.generation:
        return 0, "generation"
    common = min(len(one.keys), len(other.keys))
    by_keys = next((block for block in range(common) if one.keys[block] != other.keys[block]), common)
    if common and by_keys < min(by_tokens, common):
        return by_keys, "document" if one.documents != other.documents else "caller"
    return by_tokens, "tokens" if by_tokens < both_full else "nothing"


def _side(keyed: Keyed, token: int) -> Side | None:
    segment = next((each for each in keyed.prompt.segments if each.start <= token < each.end), None)
    if segment is None:
        return None
    ids = keyed.prompt.ids
    begin = max(segment.start, token - CONTEXT_TOKENS)
    told = tells_text(segment)
    return Side(
        origin=segment.origin,
        message=segment.message,
        token=token,
        text=keyed.decode(ids[token : token + 1]) if told else None,
        before=keyed.decode(ids[begin:token]) if told else None,
    )


def _summary(a: Side | None, b: Side | None, token: int, *, because: str, reuse: str) -> str:
    match because:
        case "namespace" | "generation":
            return f"The prompts are of different {because}s: nothing is shared between them."
        case "caller":
            return f"The callers are kept apart by the namespace's isolation: {reuse}."
        case "document":
            return f"The prompts refer to different documents, or versions of them: {reuse}."
    if a is None or b is None:
        return f"One prompt is the beginning of the other, which goes on at token {token}."
    where = a.origin if a.origin == b.origin else f"{a.origin} of the first and {b.origin} of the second"
    return f"They part at token {token}, in {where}; {reuse}."
