"""A medium whose blocks go through a codec.

Role: between a tier and its medium, so that neither knows that bytes are fewer below. Invariants: the medium underneath
proves that encoded bytes are those that were written (ISO-12), and is made for blocks of ``encoded_bytes``; what it
proves and still does not decode is set aside as corrupt. One codec for all its life: a medium that was written under
another has another layout fingerprint, and is not opened as this one.
Must not know: what a codec does, tiers.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvgrove_daemon.cache.layout import KVLayout
from kvgrove_daemon.cache.tiers.codec import CodecName, decode, encode, encoded_bytes, require_codec
from kvgrove_daemon.cache.tiers.medium import Entry, Facts, Medium, MediumCorrupt
from kvgrove_protocol.errors import Malformed


class CodecMedium:
    """``medium``, seen as one of whole blocks of ``layout``. Raises `CodecUnsupported`."""

    def __init__(self, medium: Medium, layout: KVLayout, codec: CodecName) -> None:
        require_codec(layout, codec)
        self.name = medium.name
        self.block_bytes = encoded_bytes(layout, codec)
        """What one block takes underneath."""
        self._medium = medium
        self._layout = layout
        self._codec = codec

    @property
    def num_slots(self) -> int:
        return self._medium.num_slots

    def write_many(self, blocks: Sequence[Entry]) -> None:
        """See `Medium`. Raises `NotEncodable` too, which says nothing about the medium."""
        self._medium.write_many(
            [(slot, facts, encode(self._layout, self._codec, body)) for slot, facts, body in blocks]
        )

    def read(self, slot: int, facts: Facts) -> bytes | memoryview:
        """See `Medium`. The body is that which was written, up to the codec's error."""
        body = self._medium.read(slot, facts)
        try:
            return decode(self._layout, self._codec, body)
        except Malformed as error:
            self._medium.release([slot])
            raise MediumCorrupt(f"{self.name}: {error.message}", field="slot") from error

    def release(self, slots: Sequence[int]) -> None:
        """See `Medium`."""
        self._medium.release(slots)

    def erase(self, slots: Sequence[int]) -> int:
        """See `Medium`."""
        return self._medium.erase(slots)

    def close(self) -> None:
        """See `Medium`."""
        self._medium.close()
