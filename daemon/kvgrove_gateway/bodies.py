"""Texts of prefixes and documents, by digest, in memory only.

They come over the control link, are checked against their digest and kept while the plan names them, least recently
used out beyond the bound. Losing one costs a fetch, never a wrong text.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable

from kvgrove_gateway.errors import Unavailable
from kvgrove_protocol.errors import Retryable

Fetch = Callable[[list[bytes]], Awaitable[dict[bytes, bytes]]]


class BodyStore:
    """Digest -> text. On the event loop only."""

    def __init__(self, fetch: Fetch, *, max_bytes: int, timeout_s: float) -> None:
        """``fetch``: asks the planner; it may leave out what is not known and may raise Retryable."""
        self._fetch = fetch
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._texts: OrderedDict[bytes, str] = OrderedDict()
        self._size = 0

    async def get(self, digests: Iterable[bytes]) -> dict[bytes, str]:
        """All texts of ``digests``; raises Unavailable if one cannot be had in time."""
        wanted = list(dict.fromkeys(digests))
        found = {digest: self._texts[digest] for digest in wanted if digest in self._texts}
        for digest in found:
            self._texts.move_to_end(digest)
        missing = [digest for digest in wanted if digest not in found]
        if missing:
            found |= await self._ask(missing)
        if len(found) < len(wanted):
            raise Unavailable("A referenced text is not available yet: try again.", code="body_unavailable")
        return found

    async def prefetch(self, digests: Iterable[bytes]) -> None:
        """Load what is not here yet, as far as it fits and can be had; requests need not wait for it then."""
        missing = [digest for digest in digests if digest not in self._texts]
        if missing and self._size < self._max_bytes:
            await self._ask(missing)

    def retain(self, digests: Collection[bytes]) -> None:
        """Drop all texts that no plan names any more."""
        for digest in [digest for digest in self._texts if digest not in digests]:
            self._drop(digest)

    async def _ask(self, digests: list[bytes]) -> dict[bytes, str]:
        try:
            async with asyncio.timeout(self._timeout_s):
                answered = await self._fetch(digests)
        except (Retryable, TimeoutError):
            return {}
        texts: dict[bytes, str] = {}
        for digest in digests:
            body = answered.get(digest)
            if body is None or hashlib.sha256(body).digest() != digest:
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
        self._texts[digest] = text
        self._size += size
        while self._size > self._max_bytes:
            self._drop(next(iter(self._texts)))

    def _drop(self, digest: bytes) -> None:
        self._size -= len(self._texts.pop(digest).encode())
