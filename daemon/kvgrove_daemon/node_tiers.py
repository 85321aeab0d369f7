"""The slower tiers of a node, as its requests and its core see them.

Role: the `Restorer` over each pool's `TierStack`, and what the core does for tiers between steps. Invariants: one
`Restored` for each `start`, and no write to its slots after it; a load that takes longer than computing would have is
given up, so nobody waits without an end (I11); secrets are known to a tier only while the namespace's lease is valid.
Belongs to the core thread. Must not know: sockets, plans' history, how requests go on.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kvgrove_daemon.cache.chains import Chain
from kvgrove_daemon.cache.index import BlockIndex
from kvgrove_daemon.cache.store import BlockStore
from kvgrove_daemon.cache.tiers.adopting import Terms
from kvgrove_daemon.cache.tiers.restore import Below, Load, begin_load
from kvgrove_daemon.cache.tiers.stack import Lying
from kvgrove_daemon.commands import Restored
from kvgrove_daemon.model_host import HostedModel
from kvgrove_daemon.namespaces import HostedNamespace, PlanTable
from kvgrove_daemon.node_pools import NodePools
from kvgrove_daemon.plan_effects import readable_versions
from kvgrove_daemon.restorer import Restore
from kvgrove_daemon.tier_figures import TiersSeen


@dataclass(frozen=True)
class _Waiting:
    load: Load
    until: float


class NodeTiers:
    """See the module. ``prefill_tokens_per_s``: as measured, 0 before. ``restored`` hears of ended loads, in `tend`."""

    def __init__(
        self,
        pools: NodePools,
        *,
        prefill_tokens_per_s: Callable[[], float],
        clock: Callable[[], float],
        restored: Callable[[Restored], None],
    ) -> None:
        self._pools = pools
        self._rate = prefill_tokens_per_s
        self._clock = clock
        self._restored = restored
        self._loads: dict[str, _Waiting] = {}
        self._ended: deque[Restored] = deque()
        self._table: PlanTable | None = None
        self._kept: tuple[set[str], set[bytes]] = (set(), set())
        """The namespaces and generations for which tiers were last given secrets, under that table."""
        self.given_up = 0
        """Loads that took longer than computing would have."""

    # -- for requests --------------------------------------------------------------------------------------------------

    def find(self, store: BlockStore, chain: Chain, matched: int, stop: int) -> Restore | None:
        """See `Restorer`."""
        stack = self._pools.of_store(store).stack
        return stack.find(chain, matched, stop, prefill_tokens_per_s=self._rate())

    def look(self, store: BlockStore, chain: Chain, matched: int, stop: int) -> Lying:
        """What `find` would find now; nothing changes by it."""
        return self._pools.of_store(store).stack.look(chain, matched, stop, prefill_tokens_per_s=self._rate())

    def start(self, request_id: str, restore: Restore, slots: Sequence[int]) -> None:
        """See `Restorer`."""
        if not isinstance(restore, Below):
            raise TypeError(f"request {request_id}: a {type(restore).__name__} was not found here")
        load = begin_load(
            restore,
            slots,
            workers=self._pools.surface.workers,
            clock=self._clock,
            ended=lambda ended: self._conclude(request_id, ended),
        )
        self._loads[request_id] = _Waiting(load, self._clock() + load.patience(self._rate()))

    def stop(self, request_id: str) -> None:
        """See `Restorer`."""
        waiting = self._loads.get(request_id)
        if waiting is not None:
            waiting.load.abandon()
            self._conclude(request_id, waiting.load)

    def holds(self, store: BlockStore) -> bool:
        """See `Restorer`."""
        return any(write.busy for write in self._pools.of_store(store).stack.writes)

    def _conclude(self, request_id: str, load: Load) -> None:
        waiting = self._loads.get(request_id)
        if waiting is not None and waiting.load is load:  # else it was given up before
            del self._loads[request_id]
            self._ended.append(Restored(request_id, load.below.first + load.loaded))

    # -- for the core --------------------------------------------------------------------------------------------------

    @property
    def next_deadline(self) -> float | None:
        """When `tend` has something to do at the latest; None while nobody waits for a load."""
        return min((waiting.until for waiting in self._loads.values()), default=None)

    def tend(self) -> None:
        """Between steps: conclude what workers did, let go of who waited too long, and keep the tiers in order."""
        self._pools.surface.workers.poll()
        now = self._clock()
        for request_id in [name for name, waiting in self._loads.items() if waiting.until <= now]:
            self.given_up += 1
            self.stop(request_id)
        while self._ended:
            self._restored(self._ended.popleft())
        for pool in self._pools.all():
            pool.stack.tend()
            if pool.adoption is not None:
                pool.adoption.tend()

    def hand_over(self) -> None:
        """See `TierStack.hand_over`."""
        for pool in self._pools.all():
            pool.stack.hand_over()

    @property
    def left(self) -> int:
        return sum(pool.stack.left for pool in self._pools.all())

    def keep(self, table: PlanTable, models: Mapping[bytes, HostedModel], lease_valid: Callable[[str], bool]) -> None:
        """Give each tier the secrets that it may know now, and no others. ``models`` by generation.

        To be called at every turn: it costs one look-up for each namespace where nothing has changed.
        """
        leased, served = set(filter(lease_valid, table.namespaces)), set(models)
        if table is self._table and (leased, served) == self._kept:
            return
        self._table, self._kept = table, (leased, served)
        for pool in self._pools.all():
            if pool.adoption is None:
                continue
            terms: dict[str, Terms] = {}
            for uid, namespace in table.namespaces.items():
                found = _terms(namespace)
                if found is None or uid not in leased:
                    continue
                hosted = (models.get(each.generation) for each in namespace.served())
                if any(model is not None and model.pool is pool for model in hosted):
                    terms[uid] = found
            pool.adoption.keep(terms)

    # -- looking -------------------------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Iterator[bytes]]:
        """Keys of all READY blocks by tier, parents before children."""
        return {name: _keys(indexes) for name, indexes in indexes_by_tier(self._pools).items()}

    def held(self, names: Mapping[str, str]) -> dict[tuple[str, str], int]:
        """(name, tier) -> bytes of what lies in the pools and below; ``names``: of namespaces, by UID."""
        found: Counter[tuple[str, str]] = Counter()
        for pool in self._pools.all():
            used = [(pool.tier, pool.store.usage()), *((tier.name, tier.usage()) for tier in pool.stack.lower)]
            for tier, by_uid in used:
                found.update({(names[uid], tier): usage.bytes for uid, usage in by_uid.items() if uid in names})
        return dict(found)

    def seen(self) -> TiersSeen:
        pools = self._pools.all()
        return TiersSeen(
            tiers=[tier.stats() for pool in pools for tier in pool.stack.lower],
            writes=[write.stats() for pool in pools for write in pool.stack.writes],
            missing={name: error.code for pool in pools for name, error in pool.missing.items()},
            adopted=sum(pool.adoption.adopted for pool in pools if pool.adoption is not None),
            loading=len(self._loads),
            given_up=self.given_up,
        )


def indexes_by_tier(pools: NodePools) -> dict[str, list[BlockIndex]]:
    """Tier -> the indexes of what lies there, one for each pool."""
    found: dict[str, list[BlockIndex]] = {}
    for pool in pools.all():
        found.setdefault(pool.tier, []).append(pool.store.resident.index)
        for tier in pool.stack.lower:
            found.setdefault(tier.name, []).append(tier.index)
    return found


def _keys(indexes: Iterable[BlockIndex]) -> Iterator[bytes]:
    return (index.key(block) for index in indexes for block in index.ready_ids().tolist())


def _terms(namespace: HostedNamespace) -> Terms | None:
    """Under which its blocks may be read; None while nothing of it may be."""
    plan, roots = namespace.plan, namespace.roots()
    if not roots or not plan.secret:
        return None
    return Terms(
        secret=plan.secret,
        former=plan.former_secret,
        roots=roots,
        documents=frozenset(readable_versions(namespace)),
        ttl_s=plan.ttl.seconds,
    )
