"""Block keys of a prompt, with the work for known beginnings saved. Thread-safe: runs off the event loop.

Keys come from `kvgrove_protocol.chain` and from nowhere else (I9). What is remembered is the keys of whole segments of
`SEGMENT_BLOCKS` blocks under a digest of everything they depend on (root, folds, all tokens up to the segment's end).
Hashing that in one go costs a fraction of chaining block by block, and no token of any caller is kept (I12).
"""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping

from kvgrove_protocol.chain import NO_FOLDS, TOKEN_BYTES, block_keys
from kvgrove_protocol.events import split_keys

SEGMENT_BLOCKS = 64


class KnownChains:
    """Bounded memory of segments' keys, least recently used out. 2 KiB of keys a segment."""

    def __init__(self, max_segments: int) -> None:
        self._max_segments = max_segments
        self._segments: OrderedDict[bytes, bytes] = OrderedDict()
        self._lock = threading.Lock()
        self._cleared = 0

    def __len__(self) -> int:
        return len(self._segments)

    def keys(
        self, root: bytes, tokens: bytes, folds: Mapping[int, bytes] = NO_FOLDS, *, block_size: int
    ) -> list[bytes]:
        """Equal to ``chain.block_keys(root, tokens, folds, block_size=block_size)``."""
        width = SEGMENT_BLOCKS * block_size * TOKEN_BYTES
        segments = len(tokens) // width
        if not segments:
            return block_keys(root, tokens, folds, block_size=block_size)
        digests = _segment_digests(root, tokens, folds, block_size, segments)
        keys: list[bytes] = []
        known = 0
        with self._lock:
            cleared = self._cleared
            for digest in digests:
                joined = self._segments.get(digest)
                if joined is None:
                    break
                self._segments.move_to_end(digest)
                keys += split_keys(joined)
                known += 1
        parent = keys[-1] if keys else root
        fresh = block_keys(
            parent,
            memoryview(tokens)[known * width :],
            folds,
            block_size=block_size,
            first_block=known * SEGMENT_BLOCKS,
        )
        if known < segments:
            with self._lock:
                if cleared != self._cleared:
                    return keys + fresh  # erased meanwhile: nothing of before may come back
                for segment in range(known, segments):
                    start = (segment - known) * SEGMENT_BLOCKS
                    self._segments[digests[segment]] = b"".join(fresh[start : start + SEGMENT_BLOCKS])
                while len(self._segments) > self._max_segments:
                    self._segments.popitem(last=False)
        return keys + fresh

    def clear(self) -> int:
        """Forget everything, what is being computed now included; answers how many segments there were."""
        with self._lock:
            count = len(self._segments)
            self._segments.clear()
            self._cleared += 1
            return count


def _segment_digests(
    root: bytes, tokens: bytes, folds: Mapping[int, bytes], block_size: int, segments: int
) -> list[bytes]:
    """For each whole segment, a digest of all that its keys depend on."""
    width = SEGMENT_BLOCKS * block_size * TOKEN_BYTES
    by_segment: dict[int, list[int]] = {}
    for block in sorted(folds):
        by_segment.setdefault(block // SEGMENT_BLOCKS, []).append(block)
    view = memoryview(tokens)
    state = hashlib.sha256(root + block_size.to_bytes(4, "big"))
    digests: list[bytes] = []
    for segment in range(segments):
        for block in by_segment.get(segment, ()):
            fold = folds[block]
            state.update(block.to_bytes(8, "big") + len(fold).to_bytes(8, "big") + fold)
        state.update(b"tokens")
        state.update(view[segment * width : (segment + 1) * width])
        digests.append(state.copy().digest())
    return digests
