"""What an earlier boot left on a tier, taken over once a plan and a lease say whose it is.

Role: give a sealed medium the secrets of the namespaces that this node holds a lease for, take them away when a lease
ends, and list what survives of each namespace, once. Invariants: nothing is adopted before its namespace's secret and
roots are known from a plan under a valid lease (I3); blocks of another root, of documents' versions that may not be
read any more, or that have outlived their time are not adopted; parents before children (I6); whatever of a namespace
was not adopted is discarded. Adoption takes a few blocks at a time: requests go on meanwhile.
Must not know: plans, leases, files.

Who reused a block since it was written is not in its file. So private text that is adopted counts as anybody's: an
erasure of any contributor includes it (I8), at the price of erasing too much after a restart, never too little.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kvgrove_daemon.cache.contributors import ANYBODY, DECLARED, listed, tag_from
from kvgrove_daemon.cache.leases import NO_BLOCK
from kvgrove_daemon.cache.tiers.disk import DiskMedium, Survivor
from kvgrove_daemon.cache.tiers.lower import LowerTier
from kvgrove_daemon.cache.tiers.medium import Facts
from kvgrove_daemon.cache.tiers.workers import Workers
from kvgrove_protocol.errors import KvgroveError, Retryable

ADOPTED_AT_ONCE: Final = 256


@dataclass(frozen=True, slots=True, repr=False)
class Terms:
    """Under which a namespace's blocks may be read now. No ``repr``: it holds secrets (I12)."""

    secret: bytes
    former: bytes
    """The secret before it, while survivors of an erasure are being rewrapped; else empty."""
    roots: frozenset[bytes]
    """One for each generation that serves it."""
    documents: frozenset[str]
    """Labels of the versions of documents that may be read."""
    ttl_s: float


class Adoption:
    """Of one tier. Belongs to the core thread. ``clock``: the tier's; ``wall_clock``: seconds since 1970."""

    def __init__(
        self,
        tier: LowerTier,
        medium: DiskMedium,
        workers: Workers,
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        self._tier = tier
        self._medium = medium
        self._workers = workers
        self._clock = clock
        self._wall_clock = wall_clock
        self._terms: dict[str, Terms] = {}
        self._surveyed: dict[str, frozenset[bytes]] = {}
        """Namespace -> the roots under which it was surveyed, or is being surveyed."""
        self._settled: set[str] = set()
        """Those whose survey has come."""
        self._coming: deque[tuple[str, list[Survivor]]] = deque()
        """Stretches of chains whose blocks are to be listed; an empty one ends what was found of a namespace."""
        self.adopted = 0

    def keep(self, terms: Mapping[str, Terms]) -> None:
        """``terms`` by namespace UID are all that this node holds a lease for now: call it often, it changes little."""
        for namespace in self._terms.keys() - terms.keys():
            self._medium.forget_secret(namespace)
        for namespace, now in terms.items():
            before = self._terms.get(namespace)
            if before is None or (before.secret, before.former) != (now.secret, now.former):
                self._medium.set_secret(namespace, now.secret, now.former)
        self._terms = dict(terms)
        for namespace, now in terms.items():
            if namespace not in self._surveyed:
                self._surveyed[namespace] = now.roots
                self._survey(namespace, now.roots)

    def give_up(self, namespace: str) -> None:
        """Something of it was dropped: what is not adopted yet, and might hold that, never will be."""
        self._begin_again(namespace)
        self._surveyed[namespace] = frozenset()
        self._settled.add(namespace)
        self._discard(namespace)

    def dropped(self, namespace: str) -> None:
        """Something of it was dropped: where it is not settled, that may be among what is still to be adopted."""
        if namespace in self._surveyed and not self.is_settled(namespace):
            self.give_up(namespace)

    def is_settled(self, namespace: str) -> bool:
        """Whether all that an earlier boot left of it was looked at: adopted, or on its way out."""
        waiting = any(name == namespace for name, _ in self._coming)
        return namespace in self._settled and not waiting

    def _begin_again(self, namespace: str) -> None:
        """Survey it anew with the next `keep`."""
        self._surveyed.pop(namespace, None)
        self._settled.discard(namespace)
        self._coming = deque(entry for entry in self._coming if entry[0] != namespace)

    def _survey(self, namespace: str, roots: frozenset[bytes]) -> None:
        medium = self._medium

        def work() -> Sequence[Survivor] | KvgroveError:
            try:
                return medium.survey(namespace, roots)
            except Retryable as error:
                return error

        def conclude(found: Sequence[Survivor] | KvgroveError) -> None:
            if self._surveyed.get(namespace) != roots:
                return  # given up meanwhile
            if isinstance(found, KvgroveError):
                del self._surveyed[namespace]  # with the next `keep` once more
                return
            self._settled.add(namespace)
            self._coming.extend((namespace, stretch) for stretch in _stretches(found))
            self._coming.append((namespace, []))

        self._workers.submit("write", work, conclude)

    def tend(self) -> None:
        """Between requests: list a few more blocks."""
        left = ADOPTED_AT_ONCE
        while self._coming and left > 0:
            namespace, stretch = self._coming.popleft()
            if not stretch:
                self._discard(namespace)
            elif (now := self._terms.get(namespace)) is None or now.roots != self._surveyed[namespace]:
                self._begin_again(namespace)  # the lease ended or the roots moved on meanwhile
            else:
                left -= len(stretch)
                self._adopt(stretch, now)

    def _adopt(self, stretch: Sequence[Survivor], terms: Terms) -> None:
        index = self._tier.index
        first = stretch[0].facts
        parent = NO_BLOCK if first.depth == 0 else index.find(first.parent)
        slots = self._tier.take(len(stretch)) if parent is not None else []
        if parent is None or not slots:
            return
        facts: list[Facts] = []
        oldest = 0.0
        for slot, survivor in zip(slots, stretch, strict=False):
            if not self._is_readable(survivor, terms) or not self._medium.adopt(slot, survivor):
                break
            oldest = max(oldest, self._age(survivor))
            tag = DECLARED if tag_from(survivor.facts.contributors) == DECLARED else ANYBODY
            facts.append(replace(survivor.facts, contributors=listed(tag)))
        with self._tier.resident.leases.take(parent) as lease:
            self.adopted += self._tier.admit(lease, facts, slots, self._clock() - oldest)

    def _is_readable(self, survivor: Survivor, terms: Terms) -> bool:
        return self._age(survivor) < terms.ttl_s and terms.documents.issuperset(survivor.facts.documents)

    def _age(self, survivor: Survivor) -> float:
        return max(0.0, self._wall_clock() - survivor.written_at)

    def _discard(self, namespace: str) -> None:
        medium = self._medium

        def work() -> None:
            try:
                medium.discard(namespace)
            except Retryable:
                return  # what is left gives way to whatever is written, and is never read

        self._workers.submit("write", work, lambda _: None)


def _stretches(found: Iterable[Survivor]) -> Iterator[list[Survivor]]:
    """Survivors as stretches, each the continuation of one before it: so that chains get neighbouring ids."""
    children: dict[bytes, list[Survivor]] = {}
    starts: list[Survivor] = []
    for survivor in found:
        if survivor.facts.depth == 0:
            starts.append(survivor)
        else:
            children.setdefault(survivor.facts.parent, []).append(survivor)
    while starts:
        stretch = [starts.pop()]
        while followers := children.pop(stretch[-1].facts.key, []):
            starts += followers[1:]
            if len(stretch) == ADOPTED_AT_ONCE:
                starts.append(followers[0])
                break
            stretch.append(followers[0])
        yield stretch
