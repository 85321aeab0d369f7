"""What was stored under which versions: tells "changed" from "new" when tokens miss (I10).

A *zone* is a piece of prompt that keeps its identity across versions: a declared prefix, a document, or a caller's text
that begins in a known way. For each, the state it was last stored under is kept, in a bounded LRU: forgetting makes a
reason less precise (``new``), never a hit wrong. Zones of private text carry the caller's own realm fields, so nobody
learns from them what others hold (I2).
"""

from collections import OrderedDict
from dataclasses import dataclass

from kvgrove_daemon.answers import GivenAnswers
from kvgrove_protocol.reasons import MissReason


@dataclass(frozen=True)
class ZoneState:
    """What a zone's blocks depend on besides tokens."""

    generation: bytes
    purge: tuple[int, bytes]
    policy_version: int
    documents: tuple[tuple[str, int], ...]
    """(id, epoch) of the documents up to and including the zone."""


class ReuseHistory:
    """Zone -> state last stored, and the answers given. Not thread-safe."""

    def __init__(self, capacity: int = 16_384) -> None:
        self.answers = GivenAnswers(capacity)
        self._capacity = capacity
        self._states: OrderedDict[bytes, ZoneState] = OrderedDict()

    def __len__(self) -> int:
        return len(self._states)

    def record(self, zone: bytes, state: ZoneState) -> None:
        self._states[zone] = state
        self._states.move_to_end(zone)
        if len(self._states) > self._capacity:
            self._states.popitem(last=False)

    def why_missed(self, zone: bytes, state: ZoneState) -> MissReason:
        """The reason that tokens of ``zone`` are not there under ``state``, as far as versions explain it."""
        stored = self._states.get(zone)
        if stored is None or stored == state:
            return MissReason.NEW
        if stored.generation != state.generation:
            return MissReason.GENERATION_CHANGED
        if stored.purge != state.purge or stored.policy_version != state.policy_version:
            return MissReason.PURGED
        if [name for name, _ in stored.documents] == [name for name, _ in state.documents]:
            return MissReason.DOCUMENT_CHANGED
        return MissReason.NEW  # other documents before it: another prompt
