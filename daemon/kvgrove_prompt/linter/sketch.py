"""Learns from requests which word of their stable zone varies, and keeps no text (PRO-07, PRO-09).

Of each zone a few *shapes* are kept: the keyed hashes of the words of the first request that looked like it. A later
request that shares most of its words with a shape is compared with it: the first word that differs is where reuse ends.
Hashes are of 64 bits under a key that lives as long as this object, so they say nothing to anybody without it. All is
bounded: zones, shapes, words. Not for several threads at once.
"""

import hashlib
import re
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence

from kvgrove_prompt.linter.lint import Finding
from kvgrove_prompt.linter.patterns import Volatile, matches
from kvgrove_prompt.linter.stable_zone import Zone

MAX_ZONES = 256
MAX_SHAPES = 8
MAX_WORDS = 2048
"""Of a zone that are compared."""

ALIKE = 0.7
"""Share of words in common from which on two texts count as one text that varies."""

_WORD = re.compile(r"\w+|[^\w\s]")


class StableSketch:
    """``key``: random bytes, at most 64."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._zones: OrderedDict[tuple[str, str], list[_Shape]] = OrderedDict()

    def observe(self, owner: str, zones: Sequence[Zone]) -> list[Finding]:
        """What of ``zones`` differs from what ``owner`` (a namespace) sent before, at most one finding for each."""
        return [finding for zone in zones if (finding := self._compare(owner, zone)) is not None]

    def clear(self) -> int:
        """Forget everything; answers how many zones there were."""
        count = len(self._zones)
        self._zones.clear()
        return count

    def forget(self, owner: str) -> None:
        for each in [each for each in self._zones if each[0] == owner]:
            del self._zones[each]

    def _compare(self, owner: str, zone: Zone) -> Finding | None:
        words = list(_words(zone.text))
        hashes = [self._hash(zone.text[start:end]) for start, end in words]
        shapes = self._zones.setdefault((owner, zone.name), [])
        self._zones.move_to_end((owner, zone.name))
        while len(self._zones) > MAX_ZONES:
            self._zones.popitem(last=False)
        shape = next((each for each in shapes if each.is_like(hashes)), None)
        if shape is None:
            shapes.insert(0, _Shape(hashes))
            del shapes[MAX_SHAPES:]
            return None
        shapes.remove(shape)
        shapes.insert(0, shape)
        position = shape.first_difference(hashes)
        if position is None:
            return None
        shape.varied[position] += 1
        kind = Volatile.RANDOM_ORDER if shape.has_same_words(hashes) else _kind_at(zone.text, words, position)
        return Finding(kind, zone.name, position, position + 1, shape.varied[position], learned=True)

    def _hash(self, word: str) -> int:
        digest = hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8, key=self._key).digest()
        return int.from_bytes(digest, "little")


class _Shape:
    """The words of one text, as hashes, and how often each position was the first to differ."""

    def __init__(self, hashes: list[int]) -> None:
        self._hashes = hashes
        self._counts = Counter(hashes)
        self.varied: Counter[int] = Counter()

    def is_like(self, hashes: Sequence[int]) -> bool:
        common = (self._counts & Counter(hashes)).total()
        return common >= ALIKE * max(len(self._hashes), len(hashes), 1)

    def first_difference(self, hashes: Sequence[int]) -> int | None:
        for position, (one, other) in enumerate(zip(self._hashes, hashes, strict=False)):
            if one != other:
                return position
        shorter = min(len(self._hashes), len(hashes))
        return None if len(self._hashes) == len(hashes) else shorter

    def has_same_words(self, hashes: Sequence[int]) -> bool:
        return self._counts == Counter(hashes)


def _words(text: str) -> Iterator[tuple[int, int]]:
    for number, found in enumerate(_WORD.finditer(text)):
        if number == MAX_WORDS:
            return
        yield found.span()


def _kind_at(text: str, words: Sequence[tuple[int, int]], position: int) -> Volatile:
    """What the word at ``position`` looks like, if it looks like anything volatile."""
    if position >= len(words):
        return Volatile.VARIES
    start, end = words[position]
    return next((found.kind for found in matches(text) if found.start < end and start < found.end), Volatile.VARIES)
