"""Trace files as requests.

Role: read the two formats, and refuse anything else with the line, the field and the cure. Invariants: block ids are
dense and prefix-chained: equal ids mean equal prompts up to and including the block; a request's last, partial block is
a block like the others. Knows nothing of caches.

- *Mooncake*: a JSON object per line, ``timestamp`` in ms, ``input_length`` in tokens, ``hash_ids`` of its blocks.
- *Coding sessions*: a line ``{session, block_size, shared_prefix_tokens, model}`` opens a session; its requests follow
  as ``{t, in, k, n}``: ms since its start, prompt tokens, and the block ids: the first ``k`` of the request before,
  then the runs ``[first, count]`` of ``n``. They become requests by `coding_sample`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, TypeVar

import msgspec

from kvgrove_cli.errors import UsageProblem
from kvgrove_cli.trace.coding_sample import Session, Turn, sample
from kvgrove_cli.trace.requests import BLOCK_TOKENS, BlockIds, Request, Trace

T = TypeVar("T")
_Count = Annotated[int, msgspec.Meta(ge=0)]
_MAX_RUN: Final = 1 << 20
"""Blocks of one run: beyond any prompt, and a bound on what one broken line can make us allocate."""
_CURE: Final = "expected a Mooncake trace (timestamp, input_length, hash_ids) or coding sessions (session, model, ...)"


class _MooncakeLine(msgspec.Struct):
    timestamp: float
    input_length: _Count
    hash_ids: list[int]


class _SessionLine(msgspec.Struct):
    session: str
    block_size: Annotated[int, msgspec.Meta(ge=1)]
    shared_prefix_tokens: _Count
    model: str


class _TurnLine(msgspec.Struct):
    at_ms: float = msgspec.field(name="t")
    prompt_tokens: _Count = msgspec.field(name="in")
    kept: _Count = msgspec.field(name="k")
    runs: list[tuple[int, Annotated[int, msgspec.Meta(ge=0, le=_MAX_RUN)]]] = msgspec.field(name="n")


class _Opening(msgspec.Struct):
    """What tells the formats apart."""

    hash_ids: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    session: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


@dataclass(frozen=True)
class _Line:
    path: Path
    number: int
    text: bytes

    def problem(self, what: str) -> UsageProblem:
        return UsageProblem(f"{self.path}: line {self.number}: {what}", field="FILE")

    def read(self, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(self.text, type=kind)
        except msgspec.MsgspecError as error:
            raise self.problem(f"{error}; mend or remove the line") from error


def read_trace(path: Path, *, seed: int) -> Trace:
    """The trace at ``path``. ``seed``: of the interleaving of coding sessions. Raises UsageProblem."""
    lines = list(_lines(path))
    if not lines:
        raise UsageProblem(f"{path}: the file holds no requests; {_CURE}", field="FILE")
    try:
        opening = msgspec.json.decode(lines[0].text, type=_Opening)
    except msgspec.MsgspecError as error:
        raise UsageProblem(f"{path}: not a trace: line 1: {error}; {_CURE}", field="FILE") from error
    if opening.hash_ids is not msgspec.UNSET:
        return _mooncake(lines)
    if opening.session is not msgspec.UNSET:
        return sample(_sessions(lines), seed=seed)
    raise UsageProblem(f"{path}: not a trace: line 1 has neither hash_ids nor session; {_CURE}", field="FILE")


def _lines(path: Path) -> Iterator[_Line]:
    try:
        with path.open("rb") as file:
            for number, text in enumerate(file, start=1):
                if text.strip():
                    yield _Line(path, number, text)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise UsageProblem(f"FILE: {path} cannot be read: {reason}; give the path of a trace", field="FILE") from error


def _mooncake(lines: Sequence[_Line]) -> Trace:
    ids = BlockIds()
    requests: list[Request] = []
    for line in lines:
        read = line.read(_MooncakeLine)
        wanted = -(-read.input_length // BLOCK_TOKENS)
        if len(read.hash_ids) != wanted:
            raise line.problem(
                f"hash_ids: {len(read.hash_ids)} ids, not {wanted}, for {read.input_length} tokens; mend the line"
            )
        requests.append(Request(read.timestamp, read.input_length, ids.of(read.hash_ids)))
    requests.sort(key=lambda request: request.at_ms)
    return Trace("mooncake", requests, len(ids))


def _sessions(lines: Sequence[_Line]) -> list[Session]:
    sessions: list[Session] = []
    before: list[int] = []
    for line in lines:
        opening = line.read(_Opening)
        if opening.session is not msgspec.UNSET:
            head = line.read(_SessionLine)
            if BLOCK_TOKENS % head.block_size:
                raise line.problem(f"block_size: {head.block_size} does not divide {BLOCK_TOKENS}; use 64")
            sessions.append(Session(head.model, head.block_size, head.shared_prefix_tokens, []))
            before = []
            continue
        read = line.read(_TurnLine)
        if read.kept > len(before):
            raise line.problem(f"k: {read.kept} blocks of a request that had {len(before)}; mend or remove the session")
        blocks = before[: read.kept]
        for first, count in read.runs:
            blocks.extend(range(first, first + count))
        if len(blocks) > _MAX_RUN:
            raise line.problem(f"n: {len(blocks)} blocks are more than any prompt has; mend or remove the line")
        sessions[-1].turns.append(Turn(read.at_ms, read.prompt_tokens, blocks))
        before = blocks
    return sessions
