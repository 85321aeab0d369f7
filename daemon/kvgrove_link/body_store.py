"""Texts of prefixes, documents and templates as a member holds them: by digest, in memory only, bounded.

Role: fetch what is missing over the control link, keep it while the plan names it, least recently used out beyond the
bound. Invariants: a text is what its digest says; losing one costs a fetch, never a wrong text; no wait is longer than
``timeout_s``. On the event loop only. Must not know: plans, what the texts are for.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable

from kvgrove_link.bodies import body_digest
from kvgrove_protocol.errors import Retryable

Fetch = Callable[[list[bytes]], Awaitable[dict[bytes, bytes]]]
"""Asks the planner; may leave out what is not known and may raise Retryable."""


class BodiesMissing(Retryable):
    """The planner does not know (all of) the texts that its plan names, or did not send them in time."""

    code = "bodies_missing"


class BodyStore:
    """Digest -> text. ``max_bytes``: of all that is kept; a larger text is fetched each time it is asked for."""

    def __init__(self, fetch: Fetch, *, max_bytes: int, timeout_s: float) -> None:
        self._fetch = fetch
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._texts: OrderedDict[bytes, tuple[str, int]] = OrderedDict()
        self._size = 0

    async def get(self, digests: Iterable[bytes]) -> dict[bytes, str]:
        """All texts of ``digests``; raises BodiesMissing with the count of what cannot be had in time."""
        wanted = list(dict.fromkeys(digests))
        found = {digest: self._texts[digest][0] for digest in wanted if digest in self._texts}
        for digest in found:
            self._texts.move_to_end(digest)
        missing = [digest for digest in wanted if digest not in found]
        if missing:
            found |= await self._ask(missing)
        if lacking := len(wanted) - len(found):
            raise BodiesMissing(f"{lacking} of {len(wanted)} texts are not to be had from the planner now")
        return found

    async def prefetch(self, digests: Iterable[bytes]) -> None:
        """Load what is not here yet, as far as it fits and can be had; nobody needs to wait for it then."""
        missing = [digest for digest in digests if digest not in self._texts]
        if missing and self._size < self._max_bytes:
            await self._ask(missing)

    def retain(self, digests: Collection[bytes]) -> None:
        """Drop all texts but these."""
        for digest in [digest for digest in self._texts if digest not in digests]:
            self._drop(digest)

    @property
    def size(self) -> int:
        """Bytes kept, at most ``max_bytes``."""
        return self._size

    async def _ask(self, digests: list[bytes]) -> dict[bytes, str]:
        try:
            async with asyncio.timeout(self._timeout_s):
                answered = await self._fetch(digests)
        except (Retryable, TimeoutError):
            return {}
        texts: dict[bytes, str] = {}
        for digest in digests:
            body = answered.get(digest)
            if body is None or body_digest(body) != digest:
                continue
            try:
                texts[digest] = body.decode()
            except UnicodeDecodeError:
                continue  # the planner reads text; bytes that are none cannot be a body of ours
            self._keep(digest, texts[digest], len(body))
        return texts

    def _keep(self, digest: bytes, text: str, size: int) -> None:
        if digest in self._texts or size > self._max_bytes:
            return
        self._texts[digest] = (text, size)
        self._size += size
        while self._size > self._max_bytes:
            self._drop(next(iter(self._texts)))

    def _drop(self, digest: bytes) -> None:
        self._size -= self._texts.pop(digest)[1]
