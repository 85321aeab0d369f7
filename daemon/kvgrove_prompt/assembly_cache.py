"""The assembly cache: tokens of texts that were tokenised before, so that a turn costs only its new text (level 1).

An entry is one unit's tokens (see `units`: seams are safe there), under a key that everything before it is part of: the
caller's private realm, tokenizer and template, and each unit's text up to it. So nobody meets what others said, and a
caller meets only what that caller sent again. A document's reference is part of the key too.

It obeys what every tier obeys: `follow` drops what a purge, a policy, a generation or a document's change made old, and
what is being computed under an older state is not stored; `clear` is for erasures. Bytes are bounded, for all and for
each namespace, and room is made at whoever takes most of it, so that no caller pushes another below an equal share.
Holds tokens, never texts. Thread-safe.
"""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from kvgrove_prompt.tokenizer import PromptTokenizer
from kvgrove_prompt.units import Tokenise, Unit, UnitTokens, tokenise_texts
from kvgrove_protocol.chain import TOKEN_BYTES

ENTRY_BYTES = 320
"""What an entry takes beside its tokens."""


class NamespaceState(msgspec.Struct, frozen=True):
    """What of a namespace makes entries old. ``version``: digest of generation, purge and policy.
    ``documents``: labels (`DocumentRef.label`) of the versions in force."""

    version: bytes
    documents: frozenset[str] = frozenset()


class Scope(msgspec.Struct, frozen=True):
    """Under what a request looks up and stores. ``bundle``: digest of tokenizer and template."""

    namespace: str
    """UID."""
    realm: bytes
    """The caller's private realm."""
    bundle: bytes
    version: bytes


class Watcher(Protocol):
    """Told of what happens, by a namespace's UID. Called from any thread, under no lock."""

    def looked_up(self, namespace: str, known: int, computed: int) -> None:
        """Text tokens that were known, and that had to be computed, for one prompt."""

    def gave_way(self, namespace: str, entries: int) -> None:
        """Entries dropped for want of room."""


class AssemblyCache:
    """``max_bytes``: of all entries. ``namespace_share``: the part of it that one namespace may take."""

    def __init__(self, max_bytes: int, *, watcher: Watcher, namespace_share: float = 0.5) -> None:
        self._max_bytes = max_bytes
        self._namespace_bytes = int(max_bytes * namespace_share)
        self._watcher = watcher
        self._lock = threading.Lock()
        self._states: Mapping[str, NamespaceState] = {}
        self._rooms: dict[str, _Room] = {}
        self._bytes = 0
        self._cleared = 0

    def __len__(self) -> int:
        with self._lock:
            return sum(len(room) for room in self._rooms.values())

    @property
    def size(self) -> int:
        """Bytes in use."""
        return self._bytes

    def size_of(self, namespace: str) -> int:
        room = self._rooms.get(namespace)
        return 0 if room is None else room.size

    def follow(self, states: Mapping[str, NamespaceState]) -> None:
        """Drop what is old under ``states`` (by UID, of all namespaces); from now on nothing older is stored."""
        with self._lock:
            before, self._states = self._states, dict(states)
            for uid, room in list(self._rooms.items()):
                old, new = before.get(uid), states.get(uid)
                if new is None or old is None or new.version != old.version:
                    self._bytes -= room.size
                    del self._rooms[uid]
                elif gone := old.documents - new.documents:
                    self._bytes -= room.drop_documents(gone)

    def clear(self) -> int:
        """Forget everything, what is being computed now included; answers how many entries there were."""
        with self._lock:
            count = sum(len(room) for room in self._rooms.values())
            self._rooms.clear()
            self._bytes = 0
            self._cleared += 1
            return count

    def texts(self, tokenizer: PromptTokenizer, scope: Scope) -> Tokenise:
        """Tokenises the text units of one prompt, with what is known under ``scope``."""

        def tokenise(units: Sequence[Unit]) -> list[UnitTokens]:
            words = [unit for unit in units if unit.control is None]
            keys, documents = _keys(scope, units)
            with self._lock:
                cleared = self._cleared
                known = self._known(scope, keys)
            missing = [index for index, found in enumerate(known) if found is None]
            fresh = dict(zip(missing, tokenise_texts(tokenizer, [words[index] for index in missing]), strict=True))
            result = [fresh[index] if found is None else found for index, found in enumerate(known)]
            entries = [(keys[index], _Entry(tokens, documents[index])) for index, tokens in fresh.items()]
            gone = self._store(scope, keys, entries, cleared) if entries else {}
            for namespace, count in gone.items():
                self._watcher.gave_way(namespace, count)
            computed = sum(len(each.tokens) for each in fresh.values()) // TOKEN_BYTES
            whole = sum(len(each.tokens) for each in result) // TOKEN_BYTES
            self._watcher.looked_up(scope.namespace, whole - computed, computed)
            return result

        return tokenise

    def _known(self, scope: Scope, keys: Sequence[bytes]) -> list[UnitTokens | None]:
        room = self._rooms.get(scope.namespace)
        if room is None or not self._in_force(scope):
            return [None] * len(keys)
        return room.look_up(scope.realm, keys)

    def _in_force(self, scope: Scope) -> bool:
        state = self._states.get(scope.namespace)
        return state is not None and state.version == scope.version

    def _store(
        self, scope: Scope, keys: Sequence[bytes], entries: Sequence[tuple[bytes, "_Entry"]], cleared: int
    ) -> dict[str, int]:
        """Keep ``entries``, unless they are old by now; answers how many of whose gave way."""
        gone: dict[str, int] = {}
        with self._lock:
            if cleared != self._cleared or not self._in_force(scope):
                return gone
            current = self._states[scope.namespace].documents
            room = self._rooms.setdefault(scope.namespace, _Room())
            for key, entry in entries:
                if entry.documents <= current:
                    self._bytes += room.keep(scope.realm, key, entry)
            room.touch(scope.realm, keys)
            while room.size > self._namespace_bytes:
                self._bytes -= room.evict()
                gone[scope.namespace] = gone.get(scope.namespace, 0) + 1
            while self._bytes > self._max_bytes:
                uid = max(self._rooms, key=lambda each: self._rooms[each].size)
                self._bytes -= self._rooms[uid].evict()
                gone[uid] = gone.get(uid, 0) + 1
        return gone


class _Entry(msgspec.Struct, frozen=True):
    unit: UnitTokens
    documents: frozenset[str]
    """Labels of all documents in what the key stands for."""

    @property
    def size(self) -> int:
        return len(self.unit.tokens) + ENTRY_BYTES


_NOTHING: OrderedDict[bytes, _Entry] = OrderedDict()


class _Room:
    """One namespace's entries, by caller."""

    def __init__(self) -> None:
        self.size = 0
        self._callers: dict[bytes, OrderedDict[bytes, _Entry]] = {}
        self._sizes: dict[bytes, int] = {}

    def __len__(self) -> int:
        return sum(len(entries) for entries in self._callers.values())

    def look_up(self, realm: bytes, keys: Sequence[bytes]) -> list[UnitTokens | None]:
        entries = self._callers.get(realm)
        if entries is None:
            return [None] * len(keys)
        found = [entries.get(key) for key in keys]
        self.touch(realm, keys)
        return [None if entry is None else entry.unit for entry in found]

    def touch(self, realm: bytes, keys: Sequence[bytes]) -> None:
        """``keys`` of one prompt, in order, were used: its beginning last, so that its end gives way first."""
        entries = self._callers.get(realm, _NOTHING)
        for key in reversed(keys):
            if key in entries:
                entries.move_to_end(key)

    def keep(self, realm: bytes, key: bytes, entry: _Entry) -> int:
        """The bytes that this added."""
        entries = self._callers.setdefault(realm, OrderedDict())
        if key in entries:
            return 0
        entries[key] = entry
        self._resize(realm, entry.size)
        return entry.size

    def evict(self) -> int:
        """Drop the least recently used entry of whoever takes most room; the bytes that this freed."""
        realm = max(self._sizes, key=self._sizes.__getitem__)
        _, entry = self._callers[realm].popitem(last=False)
        self._resize(realm, -entry.size)
        return entry.size

    def drop_documents(self, labels: Iterable[str]) -> int:
        """Drop whatever stands behind one of the documents; the bytes that this freed."""
        before, gone = self.size, frozenset(labels)
        for realm, entries in list(self._callers.items()):
            for key in [key for key, entry in entries.items() if not gone.isdisjoint(entry.documents)]:
                self._resize(realm, -entries.pop(key).size)
        return before - self.size

    def _resize(self, realm: bytes, by: int) -> None:
        self.size += by
        size = self._sizes.get(realm, 0) + by
        if size:
            self._sizes[realm] = size
        else:
            del self._sizes[realm]
            del self._callers[realm]


def _keys(scope: Scope, units: Sequence[Unit]) -> tuple[list[bytes], list[frozenset[str]]]:
    """For each text unit its key, and the documents that stand in it or before it."""
    state = hashlib.sha256(b"".join(map(_framed, (scope.namespace.encode(), scope.realm, scope.bundle, scope.version))))
    keys: list[bytes] = []
    documents: list[frozenset[str]] = []
    labels: frozenset[str] = frozenset()
    for unit in units:
        if unit.control is not None:
            state.update(b"c%d" % unit.control)
            continue
        state.update(b"t%d%d" % (unit.start, len(unit.parts)))
        for part in unit.parts:
            state.update(b"%d" % part.kind + _framed(part.text.encode("utf-8", "surrogatepass")))
            if part.document is not None:
                labels |= {part.document.label}
                state.update(_framed(part.document.id.encode()) + part.document.digest + b"%d" % part.document.epoch)
        keys.append(state.copy().digest())
        documents.append(labels)
    return keys, documents


def _framed(value: bytes) -> bytes:
    return len(value).to_bytes(8, "little") + value
