"""How blocks get onto the disk.

Role: seal, write, make durable, take in; all of a group or none of it. Invariants: a draft is durable before it has its
name, and the name before the write is answered (I4); a draft whose namespace's secret is no longer the current one is
never published, so that whoever puts a new secret into force sees every extent under the old one; when there is no room
the group leaves nothing behind, and `reason` says so until a write works again. Each one is tried: the tier above paces
them. Must not know: reading, erasing.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

from kvgrove_daemon.cache.tiers.disk import sealing
from kvgrove_daemon.cache.tiers.disk.causes import Cause, SecretUnknown, refused
from kvgrove_daemon.cache.tiers.disk.extent import (
    ERASED,
    EXTENT_ID_BYTES,
    PAGE,
    encode_facts,
    identity,
)
from kvgrove_daemon.cache.tiers.disk.sealing import KEY_BYTES, Secret
from kvgrove_daemon.cache.tiers.disk.shelf import Shelf
from kvgrove_daemon.cache.tiers.disk.table import Extent
from kvgrove_daemon.cache.tiers.medium import Entry, Facts


class _Draft(NamedTuple):
    slot: int
    extent: Extent
    wrapped_by: Secret


class Writer:
    """See the module. Calls may overlap."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self.reason = ""
        """Code of the error of the last write; empty when it worked."""

    def write_many(self, blocks: Sequence[Entry]) -> None:
        """See `DiskMedium.write_many`."""
        self._shelf.files.check_open()
        drafts = [self._begin(slot, facts, body) for slot, facts, body in blocks]
        displaced = self._shelf.table.reserve([(draft.slot, draft.extent) for draft in drafts])
        with ExitStack() as undo:
            undo.callback(self._withdraw, drafts)
            try:
                self._clear_away()
                self._make_room(displaced)
                for draft, (_, facts, body) in zip(drafts, blocks, strict=True):
                    self._shelf.files.draft(draft.extent.header, self._parts(draft, facts, body))
                self._publish(drafts)
                self._shelf.files.sync()
            except OSError as error:
                failure = refused("writing", error)
                self.reason = failure.code
                raise failure from error
            undo.pop_all()
        self.reason = ""

    def _withdraw(self, drafts: Sequence[_Draft]) -> None:
        self._shelf.table.withdraw([draft.slot for draft in drafts])
        for draft in drafts:
            self._shelf.left.update(self._shelf.files.discard(draft.extent.header.extent))

    def _begin(self, slot: int, facts: Facts, body: bytes | memoryview) -> _Draft:
        if len(facts.tokens) != self._shelf.shape.token_bytes:
            raise ValueError(f"tokens: {len(facts.tokens)} bytes, a block has {self._shelf.shape.token_bytes}")
        size = memoryview(body).nbytes
        if size != self._shelf.shape.block_bytes:
            raise ValueError(f"body: {size} bytes, a block has {self._shelf.shape.block_bytes}")
        secret = self._shelf.keyring.of(facts.namespace).current
        header = self._shelf.shape.header(self._shelf.entropy(EXTENT_ID_BYTES), facts.namespace, facts.depth)
        return _Draft(slot, Extent(header, facts.root, facts.key), secret)

    def _clear_away(self) -> None:
        """Else writes that fail again and again would fill the disk with what they leave. Raises OSError."""
        for path in list(self._shelf.left):
            self._shelf.files.filesystem.unlink(path)
            self._shelf.left.discard(path)

    def _make_room(self, displaced: Sequence[Extent]) -> None:
        """Raises OSError; what could not be removed waits again."""
        for at, extent in enumerate(displaced):
            try:
                self._shelf.files.unlink(extent.header.extent)
            except OSError:
                self._shelf.table.wait_again(displaced[at:])
                raise
            self._shelf.table.count(Cause.SURPLUS)

    def _parts(self, draft: _Draft, facts: Facts, body: bytes | memoryview) -> list[bytes]:
        header = draft.extent.header
        page = header.encode()
        data_key = self._shelf.entropy(KEY_BYTES)
        return [
            page,
            sealing.wrap(data_key, draft.wrapped_by, page, self._shelf.entropy, PAGE),
            ERASED,
            sealing.seal_facts(data_key, encode_facts(facts, self._shelf.wall_clock(), header.facts_bytes), page),
            sealing.seal_body(data_key, body, page, identity(facts)),
        ]

    def _publish(self, drafts: Sequence[_Draft]) -> None:
        """Under the table's lock: who changes a secret first changes the keyring, then looks at what is in slots."""
        with self._shelf.table.lock:
            for draft in drafts:
                if not self._shelf.keyring.wraps_by(draft.extent.header.namespace, draft.wrapped_by):
                    raise SecretUnknown("disk: the namespace's secret went while this was being written")
                self._shelf.files.publish(draft.extent.header.extent)
            self._shelf.table.place([draft.slot for draft in drafts])
