"""Texts of prefixes, documents and templates, by digest, in memory only and bounded."""

from collections.abc import Awaitable, Callable, Iterable

from kvgrove_protocol.errors import Retryable

MAX_BODY_BYTES = 256 << 20


class BodiesMissing(Retryable):
    """The planner does not know (all of) the texts that its plan names, or they do not fit."""

    code = "bodies_missing"


class BodyCache:
    """Fetches what is missing, keeps what the current plan names, forgets the rest."""

    def __init__(self, fetch: Callable[[Iterable[bytes]], Awaitable[dict[bytes, bytes]]]) -> None:
        self._fetch = fetch
        self._held: dict[bytes, bytes] = {}

    async def get(self, digests: Iterable[bytes]) -> dict[bytes, bytes]:
        """Bodies of ``digests``; raises BodiesMissing with the count of what cannot be had."""
        wanted = set(digests)
        missing = wanted - self._held.keys()
        if missing:
            self._held |= await self._fetch(missing)  # the link has checked each against its digest
        if lacking := wanted - self._held.keys():
            raise BodiesMissing(f"{len(lacking)} of {len(wanted)} texts are not to be had from the planner")
        if (total := sum(map(len, self._held.values()))) > MAX_BODY_BYTES:
            raise BodiesMissing(f"texts take {total} bytes, at most {MAX_BODY_BYTES} are held")
        return {digest: self._held[digest] for digest in wanted}

    def keep(self, digests: Iterable[bytes]) -> None:
        """Forget everything but ``digests``."""
        wanted = set(digests)
        self._held = {digest: body for digest, body in self._held.items() if digest in wanted}
