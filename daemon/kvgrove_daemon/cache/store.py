"""The cache of one pool, as the node uses it: keys, match, begin, drop.

Role: put index, leases, eviction, claims and known chains together behind a handful of calls. One store per pool, that
is per KV layout; generations of equal layout share it, since a generation is part of the root key. Invariants: those of
its parts. Pure, synchronous, called from one thread.
Must not know: engines, torch, sockets, clocks, fences.

A request's way through it::

    marks = marks(spans, private_realm, block_size)
    writer = Writer(contributor, marks.private_from)
    chain = store.keys(root, tokens, marks.folds, namespace=uid, documents=marks.documents, writer=writer)
    with store.match(chain) as match:
        build = store.begin(match, spare_tokens=max_new_tokens)
    if isinstance(build, NoRoom): ...
    with build:
        ...                                          # compute tokens from match.reused_tokens on, into build.slots
        build.commit(computed // block_size, fence_ok)
        build.add_tokens([token])                    # for each decoded token
        build.extend()                               # whenever build.capacity is used up
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kvgrove_daemon.cache.ages import Clock
from kvgrove_daemon.cache.build import Build, BuildCounters, BuildScope
from kvgrove_daemon.cache.chains import NO_DOCUMENTS, Chain, KeyFunction, KnownChains
from kvgrove_daemon.cache.contributors import UNKNOWN_WRITER, Writer, covers
from kvgrove_daemon.cache.eviction import EvictionPolicy, LeafLRU
from kvgrove_daemon.cache.figures import StoreStats, Usage, stats_of, usage_of
from kvgrove_daemon.cache.history import Ghosts, RemovalCause
from kvgrove_daemon.cache.leases import NO_BLOCK
from kvgrove_daemon.cache.match import Match
from kvgrove_daemon.cache.quarantine import Wiper
from kvgrove_daemon.cache.relief import Relief
from kvgrove_daemon.cache.resident import Dropped, NoRoom, ResidencySink, ResidentBlocks, SilentSink, timeless
from kvgrove_daemon.cache.rooms import NamespaceRoom
from kvgrove_daemon.cache.runs import RunAllocator
from kvgrove_daemon.cache.subjects import Erasures, Subject
from kvgrove_protocol.chain import NO_FOLDS, TOKEN_BYTES, block_keys
from kvgrove_protocol.errors import Malformed
from kvgrove_protocol.identity import Contributor
from kvgrove_protocol.reasons import BypassReason, MissReason

__all__ = ["BlockStore", "Build", "Chain", "Dropped", "Match", "NoRoom", "StoreLimits", "StoreStats", "Usage"]

_MIN_GHOSTS: Final = 1024


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Bounds of what a store keeps beside the pool."""

    low_free: int = 0
    """Fewer free slots than this start `BlockStore.relieve`."""
    high_free: int = 0
    """It goes on until so many are free."""
    known_chain_bytes: int = 64 << 20
    ghosts: int | None = None
    """Keys whose removal is remembered; None: as many as the pool has blocks, at least 1024."""

    def __post_init__(self) -> None:
        if not 0 <= self.low_free <= self.high_free:
            raise ValueError(f"low_free must be within 0..high_free, not {self.low_free} and {self.high_free}")


class BlockStore:
    """See the module. ``pool`` is this store's alone; ``block_bytes`` serves accounting only."""

    def __init__(
        self,
        pool: RunAllocator,
        *,
        block_size: int,
        block_bytes: int,
        sink: ResidencySink | None = None,
        policy: EvictionPolicy | None = None,
        clock: Clock = timeless,
        limits: StoreLimits | None = None,
        key_function: KeyFunction = block_keys,
    ) -> None:
        self.block_size = block_size
        self.block_bytes = block_bytes
        self.limits = limits if limits is not None else StoreLimits()
        ghosts = self.limits.ghosts if self.limits.ghosts is not None else max(_MIN_GHOSTS, pool.num_slots)
        self._resident = ResidentBlocks(
            pool,
            block_size,
            policy if policy is not None else LeafLRU(pool.num_slots),
            sink if sink is not None else SilentSink(),
            Ghosts(ghosts),
            clock=clock,
        )
        self._relief = Relief(self._resident, self.limits.low_free, self.limits.high_free, clock)
        self._chains = KnownChains(self.limits.known_chain_bytes, block_size, key_function)
        self._scope = BuildScope(self._resident, self._chains, set(), BuildCounters(), key_function)
        self._erasures = Erasures()
        self._matches = 0

    # -- a request's way -----------------------------------------------------------------------------------------------

    def keys(
        self,
        root: bytes,
        tokens: bytes,
        folds: Mapping[int, bytes] = NO_FOLDS,
        *,
        namespace: str,
        documents: Mapping[int, Sequence[str]] = NO_DOCUMENTS,
        writer: Writer = UNKNOWN_WRITER,
    ) -> Chain:
        """The chain of ``tokens`` (little-endian uint32) under ``root``, the shared realm of ``namespace`` (its UID).

        ``folds``, ``documents`` and where ``writer``'s text begins come from `chains.marks`. Without a writer each
        erasure of a contributor means the whole chain. Costs one hash per block that was not seen lately.
        """
        if len(tokens) % TOKEN_BYTES:
            raise Malformed("tokens", f"{len(tokens)} bytes is no multiple of {TOKEN_BYTES}")
        return self._chains.chain(
            namespace,
            root,
            tokens,
            folds,
            {at: tuple(names) for at, names in documents.items()},
            writer=writer,
            erasures=self._erasures.count,
        )

    def match(self, chain: Chain, *, limit_tokens: int | None = None) -> Match:
        """The longest proven resident prefix, under a lease that this call takes.

        At most ``limit_tokens`` are reused, and never the last token: ``floor((n - 1) / block_size)`` blocks.
        """
        last = max(chain.token_count - 1, 0)
        reusable = (last if limit_tokens is None else min(limit_tokens, last)) // self.block_size
        blocks, tail = self._resident.longest(chain, reusable)
        lease = self._resident.leases.take(tail)
        self._resident.used(tail)
        self._matches += 1
        return Match(chain, blocks, self._resident, lease)

    def gone(self, key: bytes) -> MissReason | None:
        """Why the block of this key gave way; None where it is not known ever to have been here."""
        resident = self._resident
        block = resident.index.find(key)
        if block is not None and resident.rooms.of(resident.index.namespace(block)).ttl_s is not None:
            return MissReason.EXPIRED  # it is there, and relief will take it
        return resident.ghosts.reason(key)

    def ready_blocks(self, chain: Chain) -> int:
        """How many leading full blocks of ``chain`` are READY now. Takes no lease and is no use of them: for warmth."""
        return self._resident.longest(chain, len(chain.keys))[0]

    def skip(self, chain: Chain) -> Match:
        """A match that found nothing, for a request that must be served cold."""
        return Match(chain, 0, self._resident, self._resident.leases.take(NO_BLOCK))

    def begin(self, match: Match, *, spare_tokens: int = 0, bypass: BypassReason | None = None) -> Build | NoRoom:
        """Slots for what the match lacks, the partial last block included, and the scope to compute it in.

        The build takes the match's lease over; after `NoRoom` it is still the match's. ``spare_tokens``: how many will
        be generated, for a place with room behind it. With ``bypass`` nothing is stored.
        """
        wanted = -(-match.chain.token_count // self.block_size) - match.blocks
        reused = match.slots if match.tail != NO_BLOCK else []  # `tail` raises where the lease has gone
        after = reused[-1] if reused else None
        taken = self._resident.allocate(
            wanted,
            spare=-(-spare_tokens // self.block_size),
            after=after,
            namespace=match.chain.namespace,
        )
        if isinstance(taken, NoRoom):
            return taken
        tail, writer = match.tail, match.chain.writer
        if tail != NO_BLOCK and match.blocks > writer.private_from and bypass is None:
            index = self._resident.index
            if not covers(index.tag_of(tail), writer.contributor):  # then all before it lack it or not, too
                index.contribute(tail, writer.private_from, writer.tag)
        return Build(self._scope, match, taken, bypass, self._erasures.meaning(match.chain))

    # -- housekeeping --------------------------------------------------------------------------------------------------

    def relieve(self, limit: int = 256) -> int:
        """Off the request path: make room ahead of need, bring namespaces below their marks, take what has expired.

        Frees at most ``limit`` blocks per call and answers how many; 0 means that nothing is to be done now.
        """
        return self._relief.run(limit)

    def evict_to(self, free: int, *, limit: int) -> int:
        """Evict until ``free`` slots are free, at most ``limit`` blocks; answers how many went."""
        return self._resident.relieve_pressure(min(free - self._resident.pool.free_count, limit))

    def set_room(self, namespace: str, room: NamespaceRoom) -> None:
        """Settings of ``namespace`` from now on; what is over them gives way by `relieve`, or when it wants more."""
        self._resident.set_room(namespace, room)

    def room(self, namespace: str) -> NamespaceRoom:
        return self._resident.rooms.of(namespace)

    def rooms(self) -> Mapping[str, NamespaceRoom]:
        """Of namespaces that have settings."""
        return self._resident.rooms.all()

    def drop(
        self,
        *,
        cause: RemovalCause,
        namespace: str | None = None,
        root: bytes | None = None,
        document: str | None = None,
        contributor: Contributor | None = None,
    ) -> Dropped:
        """Reclaim what matches all of the given, and all that follows it: unreadable on return, and no build under way
        stores more of it. Slots that are still read come back when their readers have gone.

        ``document``: its id, or the label of one version. ``contributor``: a tenant (without ``user``: all of its
        blocks), or one user of it (also blocks of unknown users of the tenant, and blocks that too many contributed
        to, to tell them apart). Declared texts are nobody's.

        With `RemovalCause.ERASE` it is an erasure: see `Dropped` and `wipe_with`; chains that were handed out before it
        are stored no more, whenever they are begun. Raises ValueError when nothing is given.
        """
        if namespace is None and root is None and document is None and contributor is None:
            raise ValueError("name a namespace, a root, a document or a contributor; clear() drops everything")
        if contributor is not None and not contributor.tenant:
            raise ValueError("contributor: an erasure of a user names their tenant too")
        return self._drop(cause, Subject(namespace, root, document, contributor))

    def clear(self) -> Dropped:
        """Drop everything."""
        self._resident.ghosts.clear()
        return self._drop(RemovalCause.CLEAR, Subject())

    def _drop(self, cause: RemovalCause, subject: Subject) -> Dropped:
        erasure = self._erasures.add(subject) if cause is RemovalCause.ERASE else 0
        builds = [build for build in self._scope.live if subject.means(build.chain)]
        for build in builds:
            if erasure:
                build.erase(erasure)
            else:
                build.seal(BypassReason.FENCE_MOVED)
        if erasure:
            for build in self._scope.live.difference(builds):
                build.wipe_after(erasure)
        self._chains.forget(subject.may_be_remembered_in)
        dropped = self._resident.drop(*subject.ids_in(self._resident.index), cause, erasure)
        return replace(dropped, builds=len(builds))

    def wipe_with(self, wiper: Wiper | None) -> None:
        """From now on slots of erased blocks stay in quarantine until `release`.

        Those freed by `drop` itself are in its answer; ``wiper`` is told of those that are left later. None: nobody
        wipes, and nothing is held back any more.
        """
        self._resident.quarantine.wiper = wiper

    def release(self, slots: Iterable[int]) -> None:
        """Slots in quarantine were wiped and may be used again. Raises ValueError for one that is not there."""
        self._resident.quarantine.release(slots)

    def take_dirty(self, limit: int) -> tuple[int, ...]:
        """Up to ``limit`` free slots that may still hold bytes of blocks that gave way: in quarantine until `release`.

        An erasure is complete when there are none left, and `owing` of it is 0.
        """
        return self._resident.quarantine.take_dirty(limit)

    def owing(self, erasure: int) -> int:
        """How many blocks and builds of an erasure (`Dropped.erasure`) still keep slots that will be named later."""
        return self._resident.quarantine.owing(erasure)

    # -- looking -------------------------------------------------------------------------------------------------------

    def usage(self) -> dict[str, Usage]:
        """By namespace UID; only those that hold anything."""
        return usage_of(self._resident.index, self.block_bytes)

    def snapshot(self) -> list[bytes]:
        """Keys of all READY blocks, parents before children."""
        index = self._resident.index
        return [index.key(block) for block in index.ready_ids().tolist()]

    @property
    def resident(self) -> ResidentBlocks:
        """What lies in the pool, for slower tiers below it."""
        return self._resident

    @property
    def free_slots(self) -> int:
        return self._resident.pool.free_count

    def stats(self) -> StoreStats:
        return stats_of(self._resident, self._chains, self._scope, matches=self._matches)
