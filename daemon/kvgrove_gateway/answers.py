"""The answers to one HTTP request: one for each prompt and choice, begun together, read together, closed together."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace

import msgspec

from kvgrove_gateway.account import Account, together
from kvgrove_gateway.answer import Answer, AnswerPiece
from kvgrove_gateway.chat import Call

SEEDS = 2**63


class Answers:
    """Answers by index. `pieces` is read once; `close` may be called any number of times."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        self.all = tuple(answers)

    @property
    def first(self) -> Answer:
        return self.all[0]

    @property
    def account(self) -> Account:
        """What they cost together so far; final once all pieces are read."""
        return together([answer.account for answer in self.all])

    async def pieces(self) -> AsyncIterator[tuple[int, AnswerPiece | None]]:
        """Pieces of all answers as they come, with their index; None once an answer is complete.

        Raises ApiError if one of them breaks off.
        """
        sources = [answer.pieces() for answer in self.all]
        waiting = {asyncio.ensure_future(anext(source, None)): index for index, source in enumerate(sources)}
        try:
            while waiting:
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in sorted(done, key=lambda each: waiting[each]):
                    index = waiting.pop(task)
                    piece = task.result()
                    if piece is not None:
                        waiting[asyncio.ensure_future(anext(sources[index], None))] = index
                    yield index, piece
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    def close(self) -> None:
        """The caller is done with them or has gone."""
        for answer in self.all:
            answer.close()


async def begin_all(begin: Callable[[Call], Awaitable[Answer]], calls: Sequence[Call], choices: int) -> Answers:
    """``choices`` answers to each of ``calls``, in order: all of the first prompt, then all of the second.

    The first answer of a prompt goes ahead, so that the others find it computed. Raises what the first failure is; no
    answer stays open then. With a seed, each choice has a seed of its own that follows from it.
    """
    begun: list[Answer] = []
    try:
        firsts = await _together(begin, calls, begun)
        siblings = [_sibling(call, number) for call in calls for number in range(1, choices)]
        others = await _together(begin, siblings, begun)
    except BaseException:
        for answer in begun:
            answer.close()
        raise
    each = choices - 1
    return Answers(
        [
            answer
            for position, first in enumerate(firsts)
            for answer in (first, *others[position * each : (position + 1) * each])
        ]
    )


async def _together(
    begin: Callable[[Call], Awaitable[Answer]], calls: Sequence[Call], begun: list[Answer]
) -> list[Answer]:
    """The answers to ``calls``; each joins ``begun`` as soon as it is open."""

    async def one(call: Call) -> Answer:
        answer = await begin(call)
        begun.append(answer)
        return answer

    tasks = [asyncio.ensure_future(one(call)) for call in calls]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _sibling(call: Call, number: int) -> Call:
    sampling = call.ask.sampling
    if sampling.seed is not None:
        seed = (sampling.seed + number + SEEDS) % (2 * SEEDS) - SEEDS
        sampling = msgspec.structs.replace(sampling, seed=seed)
    return replace(call, id=f"{call.id}.{number}", ask=replace(call.ask, sampling=sampling), sibling=True)
