"""What was stored under which versions: tells "changed" from "new" when tokens miss (I10).

A *zone* is a piece of prompt that keeps its identity across versions: a declared prefix, a document, or a caller's text
that begins in a known way. For each, the state it was last stored under is kept, in a bounded LRU: forgetting makes a
reason less precise (``new``), never a hit wrong. A caller's text has several names, each of a longer beginning: the
longest one that is known says what became of it, so that of many conversations with one system prompt, the first to be
stored anew does not speak for all. Zones of private text carry the caller's own realm fields, so nobody
learns from them what others hold (I2).
"""

from collections import OrderedDict
from collections.abc import Sequence
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

    def __init__(self, capacity: int = 65_536, answers: int = 16_384) -> None:
        """``capacity``: names of zones, of which a long conversation has a dozen; ``answers``: answers given."""
        self.answers = GivenAnswers(answers)
        self._capacity = capacity
        self._states: OrderedDict[bytes, ZoneState] = OrderedDict()

    def __len__(self) -> int:
        return len(self._states)

    def record(self, names: Sequence[bytes], state: ZoneState) -> None:
        """A zone of these names is stored under ``state``."""
        for name in names:
            self._states[name] = state
            self._states.move_to_end(name)
        while len(self._states) > self._capacity:
            self._states.popitem(last=False)

    def why_missed(self, names: Sequence[bytes], state: ZoneState) -> MissReason:
        """The reason that tokens of a zone are not there under ``state``, as far as versions explain it.

        ``names``: the zone's, the longest beginning last.
        """
        stored = next((found for name in reversed(names) if (found := self._states.get(name)) is not None), None)
        if stored is None or stored == state:
            return MissReason.NEW
        if stored.generation != state.generation:
            return MissReason.GENERATION_CHANGED
        if stored.purge != state.purge or stored.policy_version != state.policy_version:
            return MissReason.PURGED
        if [name for name, _ in stored.documents] == [name for name, _ in state.documents]:
            return MissReason.DOCUMENT_CHANGED
        return MissReason.NEW  # other documents before it: another prompt
