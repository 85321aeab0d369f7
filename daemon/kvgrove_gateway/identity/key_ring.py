"""The API keys in force.

A key is looked up by a keyed hash of its digest under a secret of this process. Whoever measures look-ups of chosen
wrong keys learns of values that mean nothing outside this process, so the comparison needs no constant time of its own.

A key that was taken out of the file is refused from the first request that begins afterwards: each look-up asks the
file system whether the file was replaced (one ``stat``), and reads it first if so. Answers under way go on to their
end: a key is asked for when a request begins.
"""

import asyncio
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from kvgrove_gateway.identity.caller import Identity
from kvgrove_gateway.identity.files import WatchedFile
from kvgrove_gateway.identity.key_file import identities, parse_keys

MAX_KEY_CHARS = 512

_Table: TypeAlias = dict[bytes, tuple[Identity, float | None]]


class KeyRing:
    """Key -> identity. On the event loop; the file is read in a thread, by one at a time."""

    def __init__(
        self,
        path: Path,
        *,
        on_failure: Callable[[], None],
        now: Callable[[], float],
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        """Reads ``path``; raises BrokenFile. ``now``: seconds since 1970."""
        self._now = now
        self._pepper = random_bytes(32)
        self._file = WatchedFile(path, self._table, what="keys file", on_failure=on_failure)
        self._reading = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._file.value)

    async def refresh(self) -> bool:
        """Read the file again, whatever it looks like from outside; True if other keys are in force now."""
        async with self._reading:
            return await asyncio.to_thread(self._file.refresh)

    async def identify(self, key: str) -> Identity | None:
        """Whom ``key`` speaks for, by the file as it is now; None for a key that is not in it or has expired."""
        if self._file.replaced():
            async with self._reading:
                if self._file.replaced():
                    await asyncio.to_thread(self._file.refresh)
        return self.find(key)

    def find(self, key: str) -> Identity | None:
        """`identify`, by the file as it was last read."""
        if not key or len(key) > MAX_KEY_CHARS:
            return None
        digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
        identity, expires = self._file.value.get(self._index(digest), (None, None))
        return identity if expires is None or self._now() < expires else None

    def _index(self, digest: bytes) -> bytes:
        return hashlib.blake2b(digest, key=self._pepper, digest_size=32).digest()

    def _table(self, text: bytes) -> _Table:
        return {self._index(digest): (identity, expires) for digest, identity, expires in identities(parse_keys(text))}
