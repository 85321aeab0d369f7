"""The last batches that were published, for readers with a gap. Bounded in number and in bytes."""

from collections import deque
from collections.abc import Iterator

MAX_BATCHES = 10_000
MAX_BYTES = 64 << 20


class History:
    """Batches are added in order, none left out."""

    def __init__(self, max_batches: int = MAX_BATCHES, max_bytes: int = MAX_BYTES) -> None:
        self._max_batches, self._max_bytes = max_batches, max_bytes
        self._kept: deque[tuple[int, bytes]] = deque()
        self._bytes = 0

    def add(self, seq: int, payload: bytes) -> None:
        self._kept.append((seq, payload))
        self._bytes += len(payload)
        while len(self._kept) > self._max_batches or (self._bytes > self._max_bytes and len(self._kept) > 1):
            self._bytes -= len(self._kept.popleft()[1])

    def since(self, seq: int) -> Iterator[tuple[int, bytes]]:
        """From ``seq`` on, or from the oldest that is kept: the reader sees by the first number what is missing."""
        return ((number, payload) for number, payload in tuple(self._kept) if number >= seq)
