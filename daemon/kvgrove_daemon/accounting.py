"""Each prompt token is reused or has exactly one miss reason, and the counts add up (I10).

Pure: takes what the match found and what the history says, gives the missed ranges; what a request is told are their
sums, so an explanation and an account of the same state cannot differ.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kvgrove_daemon.history import ReuseHistory, ZoneState
from kvgrove_protocol.canonical import digest
from kvgrove_protocol.chain import TOKEN_BYTES, Span, SpanKind
from kvgrove_protocol.identity import RealmInputs
from kvgrove_protocol.reasons import MissReason


@dataclass(frozen=True)
class Zone:
    """Tokens ``start`` to ``end`` of a prompt, and what they depend on."""

    names: tuple[bytes, ...]
    """By how much of it each can be known again, the shortest beginning first."""
    start: int
    end: int
    state: ZoneState


class MissedRange(NamedTuple):
    """Tokens ``start`` (inclusive) to ``end`` (exclusive) of a prompt that are computed, and why."""

    start: int
    end: int
    reason: MissReason


def reusable_limit(token_count: int, block_size: int) -> int:
    """How many leading tokens can be reused at most: the last one is always computed."""
    return max(token_count - 1, 0) // block_size * block_size


def zones(spans: Sequence[Span], tokens: bytes, realm: RealmInputs, caller_tag: bytes, block_size: int) -> list[Zone]:
    """Cut a prompt into zones. Template scaffolding belongs to what it follows.

    ``caller_tag``: the caller's realm fields without any version (see `RealmInputs.private_realm` on a fixed realm).
    """
    found: list[Zone] = []
    documents: tuple[tuple[str, int], ...] = ()

    def state() -> ZoneState:
        purge = (realm.purge.counter, realm.purge.nonce)
        return ZoneState(realm.generation, purge, realm.policy_version, documents)

    uid = realm.namespace_uid
    total = len(tokens) // TOKEN_BYTES
    for span in spans:
        if span.start == span.end or span.kind is SpanKind.TEMPLATE:
            continue
        if span.kind is SpanKind.PRIVATE:  # everything from here on is the caller's
            behind = digest("zone/behind", [uid, caller_tag, [name for zone in found for name in zone.names]])
            said = b"".join(
                tokens[each.start * TOKEN_BYTES : each.end * TOKEN_BYTES]
                for each in spans
                if each.kind is SpanKind.PRIVATE
            )
            names = _beginnings(behind, said, block_size * TOKEN_BYTES)
            found.append(Zone(names, span.start, total, state()))
            break
        if span.document is not None:
            documents = (*documents, (span.document.id, span.document.epoch))
        name = digest("zone/shared", [uid, span.kind.value, span.document.id if span.document else span.name])
        found.append(Zone((name,), span.start, span.end, state()))
    return found


def _beginnings(behind: bytes, said: bytes, size: int) -> tuple[bytes, ...]:
    """Names of the first 1, 2, 4, 8, ... blocks of what a caller said: a conversation is known again as it grows, and
    told apart from others with its system prompt. A template's scaffolding is no part of them, nor where they begin:
    both may change with it."""
    names: list[bytes] = []
    begin, end = 0, size
    while end <= max(len(said), size):
        behind = digest("zone/private", [behind, said[begin:end]])
        names.append(behind)
        begin, end = end, 2 * end
    return tuple(names)


def account(missed: Sequence[MissedRange]) -> dict[MissReason, int]:
    """Miss reason -> tokens; positive counts only."""
    counts: dict[MissReason, int] = {}
    for start, end, reason in missed:
        counts[reason] = counts.get(reason, 0) + end - start
    return counts


def missed_ranges(
    *,
    token_count: int,
    reused: int,
    block_size: int,
    keys: Sequence[bytes],
    gone: Callable[[bytes], MissReason | None],
    zone_list: Sequence[Zone],
    history: ReuseHistory,
    retokenised: range = range(0),
) -> list[MissedRange]:
    """The tokens from ``reused`` on, in order and without gaps; neighbours of one reason are one range.

    ``keys``: of the prompt's full blocks. ``gone``: why the block of a key is no longer here, if it ever was.
    ``retokenised``: blocks of an answer that came back as other tokens (`answers.retokenised_blocks`).
    """
    ranges: list[MissedRange] = []
    limit = reusable_limit(token_count, block_size)
    for block in range(reused // block_size, limit // block_size):
        start = block * block_size
        reason = gone(keys[block])
        if reason is None and block in retokenised:
            reason = MissReason.RETOKENISED
        reason = reason or _zone_reason(zone_list, start, start + block_size, history)
        _append(ranges, MissedRange(start, start + block_size, reason))
    if (begin := max(limit, reused)) < token_count:
        _append(ranges, MissedRange(begin, token_count, MissReason.PARTIAL_BLOCK))
    return ranges


def _append(ranges: list[MissedRange], more: MissedRange) -> None:
    if ranges and ranges[-1].reason is more.reason:
        ranges[-1] = ranges[-1]._replace(end=more.end)
    else:
        ranges.append(more)


def _zone_reason(zone_list: Sequence[Zone], start: int, end: int, history: ReuseHistory) -> MissReason:
    """The reason of the block ``[start, end)``: that of the last zone that begins before its end."""
    reason = MissReason.NEW
    for zone in zone_list:
        if zone.start >= end:
            break
        reason = history.why_missed(zone.names, zone.state)
        if reason is not MissReason.NEW and zone.end > start:
            return reason
    return reason
