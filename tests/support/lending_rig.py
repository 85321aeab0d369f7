"""Lending over a small store, with processes that end when a test says so."""

from __future__ import annotations

import itertools

from block_store_rig import always, chain_of, tokens

from kvgrove_daemon.cache.foreign_leases import Holder, LeaseLimits
from kvgrove_daemon.cache.lending import Lending, Loan, LoanRefusal
from kvgrove_daemon.cache.store import BlockStore, NoRoom


class Mortals:
    """An observer of made-up processes: those in ``dead`` have ended."""

    def __init__(self) -> None:
        self.dead: set[Holder] = set()
        self._pids = itertools.count(1)

    def new(self) -> Holder:
        return Holder(next(self._pids), 0, "boot")

    def ended(self, holder: Holder) -> bool:
        return holder in self.dead


ROOMY = LeaseLimits(slots=1000, holder_slots=1000)


def lending_of(store: BlockStore, observer: Mortals, limits: LeaseLimits = ROOMY) -> Lending:
    ids = itertools.count()
    return Lending(store, limits, observer, new_id=lambda: f"loan-{next(ids)}")


def prompt(number: int, blocks: int, block: int) -> bytes:
    """``blocks`` full blocks of prompt ``number``, and one token more."""
    return tokens([number, *range(blocks * block)])


def look_up(store: BlockStore, raw: bytes) -> tuple[int, list[int]]:
    """One request that stores what it lacks, where there is room; answers tokens reused, and slots it wrote."""
    chain = chain_of(store, raw)
    match = store.match(chain)
    reused = match.reused_tokens
    build = store.begin(match)
    if isinstance(build, NoRoom):
        match.release()
        return reused, []
    with build:
        written = build.private_slots()
        build.commit(len(chain.keys), always)
    return reused, written


def lend(store: BlockStore, lending: Lending, raw: bytes, holder: Holder, now: float = 0.0) -> Loan | LoanRefusal:
    """Match and lend for 30 s; a match that is not lent ends here."""
    with store.match(chain_of(store, raw)) as match:
        return lending.lend(match, holder, 30.0, now)
