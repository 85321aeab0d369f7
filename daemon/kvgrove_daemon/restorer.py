"""How slower tiers bring blocks back before a request is computed: the protocol, and a node without such tiers.

Role: the seam between a request's life and whatever holds blocks beside the pool. A request whose match ends where a
slower tier goes on is LOADING: it has slots of its own and leads a flight, so others wait for the load instead of
repeating it. Workers fill its slots in threads of their own, and say so with the command `Restored`, which the core
carries out between engine steps: what was loaded is committed like what was computed, and the rest is computed.
Invariants that an implementation keeps: `find` answers blocks whose content was proven equal to the chain's (I1), under
a lease of its own tier until they are loaded or released (CON-01); one `Restored` for each `start`, always, also after
`stop` and after an error (a worker whose command finds the core's queue full says it again), and no write to the slots
after it: until then they are nobody else's (I5).
Must not know: who asked, sockets, flights.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from kvgrove_daemon.cache.chains import Chain
from kvgrove_daemon.cache.store import BlockStore


class Restore(Protocol):
    """Blocks that can be loaded, leased where they lie."""

    @property
    def upto(self) -> int:
        """Blocks of the chain below this one are in the pool, or are to be loaded."""

    @property
    def declined(self) -> int:
        """So many blocks behind them are held, and quicker computed again than loaded."""

    def by_tier(self, blocks: int) -> Mapping[str, int]:
        """Tier -> how many of the first ``blocks`` of those that are to be loaded come from it; positive counts."""

    def release(self) -> None:
        """They are not wanted after all. Before `Restorer.start` only."""


class Restorer(Protocol):
    """The slower tiers of a node, as its requests see them. Called from the core thread; must not wait."""

    def find(self, store: BlockStore, chain: Chain, matched: int, stop: int) -> Restore | None:
        """What follows the ``matched`` blocks in slower tiers, below ``stop``; None where nothing is.

        With ``upto == matched`` there is nothing to load: all of it was declined.
        """

    def start(self, request_id: str, restore: Restore, slots: Sequence[int]) -> None:
        """Load into ``slots``, those of the blocks from the matched ones up to ``restore.upto``, in order."""

    def stop(self, request_id: str) -> None:
        """Nobody waits for this load any more: skip what is not begun."""

    def holds(self, store: BlockStore) -> bool:
        """Whether blocks of ``store`` are being copied to a slower tier: room may come without any request's end."""


class NoSlowerTier:
    """A node whose pool is its only tier."""

    def find(self, store: BlockStore, chain: Chain, matched: int, stop: int) -> Restore | None:
        del store, chain, matched, stop
        return None

    def start(self, request_id: str, restore: Restore, slots: Sequence[int]) -> None:
        del restore, slots
        raise ValueError(f"request {request_id}: nothing was found here that could be loaded")

    def stop(self, request_id: str) -> None:
        del request_id

    def holds(self, store: BlockStore) -> bool:
        del store
        return False
