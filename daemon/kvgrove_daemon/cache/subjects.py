"""Whom an erasure or another reclaim means, and what came before it.

Role: one selector for blocks, for builds under way, for remembered chains and for chains that somebody still holds.
Invariant: a chain that was handed out before an erasure of its subject never enters the cache again (I3, I8): it
carries the number of erasures before it, and is asked again when it is used. Of older erasures than the last
`_REMEMBERED` no subject is kept: a chain from before them counts as meant (I11).
Must not know: blocks, slots.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from kvgrove_daemon.cache.chains import Chain
from kvgrove_daemon.cache.contributors import means
from kvgrove_daemon.cache.index import BlockIndex
from kvgrove_protocol.chain import names_document
from kvgrove_protocol.identity import Contributor

_REMEMBERED: Final = 256


@dataclass(frozen=True, slots=True)
class Subject:
    """What matches all that is given. Nothing given means everything."""

    namespace: str | None = None
    root: bytes | None = None
    document: str | None = None
    contributor: Contributor | None = None
    """A tenant, or with ``user`` one user of it and all whose user is not known."""

    def means_document(self, label: str) -> bool:
        return self.document is not None and names_document(self.document, label)

    def means(self, chain: Chain) -> bool:
        """Whether ``chain``, its generated part included, holds text of this subject."""
        return (
            self.namespace in (None, chain.namespace)
            and self.root in (None, chain.root)
            and (
                self.document is None
                or any(self.means_document(label) for labels in chain.documents.values() for label in labels)
            )
            and (self.contributor is None or means(self.contributor, chain.writer.tag))
        )

    def ids_in(self, index: BlockIndex) -> tuple[list[int], list[int] | None, list[int] | None]:
        """Ids of the roots, folds and tags by which `ResidentBlocks.drop` finds its blocks; None: whichever."""
        roots = [
            known
            for known, value, labels in index.roots.items()
            if self.root in (None, value) and self.namespace in (None, *labels)
        ]
        folds = tags = None
        if self.document is not None:
            folds = [known for known, _, labels in index.folds.items() if any(map(self.means_document, labels))]
        if self.contributor is not None:
            tags = [known for known, tag, _ in index.tags.items() if means(self.contributor, tag)]
        return roots, folds, tags

    def may_be_remembered_in(self, chain: Chain) -> bool:
        """The same for a chain that may stand for requests of several contributors: wider, it costs only hashing."""
        return Subject(self.namespace, self.root, self.document).means(chain)


class Erasures:
    """The erasures of one store so far. Mutable, single-threaded."""

    def __init__(self) -> None:
        self.count = 0
        self._subjects: deque[tuple[int, Subject]] = deque(maxlen=_REMEMBERED)

    def add(self, subject: Subject) -> int:
        """Answers the number of this erasure, from 1."""
        self.count += 1
        self._subjects.append((self.count, subject))
        return self.count

    def meaning(self, chain: Chain) -> frozenset[int]:
        """The erasures that mean ``chain`` and came after it was handed out; of forgotten ones the last stands for
        all."""
        since = chain.erasures
        if since >= self.count:
            return frozenset()
        found = {number for number, subject in self._subjects if number > since and subject.means(chain)}
        oldest = self._subjects[0][0]
        return frozenset(found | {oldest - 1} if oldest - 1 > since else found)
