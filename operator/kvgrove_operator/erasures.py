"""Erasures of parts of a namespace: which are asked for, under which secret, and when they are done (I8). Pure.

An entry of ``spec.privacy.erasures`` becomes an erasure the first time it is seen, and stays one until there is
evidence from every holder, also where the entry is removed meanwhile: half of it is erased already. Entries are known
by name and selector; the same entry again is no new erasure. What was computed under a generation that is not served
any more is erased in the same way, once for each time that it is given up; nobody has to ask for it.

=========  ==========================================================================================================
stage      what holds
=========  ==========================================================================================================
WAITING    Members have been told, and erase. The rewrap that will seal it starts when the one under way ends.
CURRENT    Members wrap the survivors under ``secret``; what only ``former_secret`` opens is noise once that is gone.
DONE       Every holder gave its receipt or is gone, and ``former_secret`` has been destroyed.
=========  ==========================================================================================================

A rewrap takes all erasures that wait for one, so that many at once cost each node one pass over its disk. While one is
under way later erasures wait for their own: an extent that is wrapped anew already could otherwise outlive them.

A new erasure raises the document revision of the fence, so that what gateways assembled before is refused and what
nodes are computing is not stored. That component, because the salts of engines that know nothing of ours change with it
(`identity.cache_salt`), while no key of a surviving block does; the purge counter would cut off everybody, and who may
use the namespace (the access revision) has not changed. A generation that is given up needs none of that: requests name
theirs, so from the very plan on that omits it nothing is admitted under it, and nothing of it is stored.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from kvgrove_crds.namespace_access import ErasureSpec
from kvgrove_operator.plan_state import ErasureState, Mint, NamespaceState, Proof, Stage
from kvgrove_protocol.control import ErasurePlan
from kvgrove_protocol.identity import contributor, short

Selector = tuple[bytes, bytes, str]
"""Pseudonyms of tenant and user, and document: what an entry means, whatever it is called."""

_GENERATIONS_KEPT = 2
"""Erasures of generations that are done and still shown with their proof."""


@dataclass(frozen=True)
class Retired:
    """A generation that the plan gives up, and the shared realm that roots its blocks."""

    generation: bytes
    root: bytes


@dataclass(frozen=True)
class Erasures:
    """The erasures that follow a namespace's state, and the secrets that go with them."""

    entries: tuple[ErasureState, ...]
    """In the order in which they were first seen."""
    epoch: int
    secret: bytes
    former_secret: bytes
    added: bool
    """The fence must rise."""

    def plans(self) -> list[ErasurePlan]:
        """What members are to be told."""
        return [each.plan for each in self.entries if each.stage is not Stage.DONE]

    def sealed(self, retired: Iterable[Retired], mint: Mint) -> "Erasures":
        """With the generations that are given up by the same planning, and the rewrap that is due begun.

        Mints a secret for the rewrap, and a nonce for the id of each new erasure.
        """
        entries, epoch = list(self.entries), self.epoch
        for given_up in retired:
            epoch += 1
            told = ErasurePlan(id=mint.nonce().hex(), epoch=epoch, root=given_up.root)
            name = f"generation {short(given_up.generation)}"
            entries.append(ErasureState(name=name, plan=told, stage=Stage.WAITING, generation=given_up.generation))
        stages = {each.stage for each in entries}
        if Stage.WAITING not in stages or Stage.CURRENT in stages:
            return dataclasses.replace(self, entries=tuple(entries), epoch=epoch)
        begun = (replace(each, stage=Stage.CURRENT) if each.stage is Stage.WAITING else each for each in entries)
        return Erasures(tuple(begun), epoch, mint.secret(), self.secret, self.added)


def erasures(
    declared: Sequence[ErasureSpec],
    before: NamespaceState | None,
    pseudonym_key: bytes,
    proofs: Mapping[str, Proof],
    mint: Mint,
) -> Erasures:
    """What follows ``before``, yet to be `sealed`. ``proofs``: erasure id -> how its holders stand to it, of those
    under way.

    Mints a secret where there is none, a nonce for the id of each new erasure.
    """
    entries = list(before.erasures) if before is not None else []
    secret, former = (before.secret, before.former_secret) if before is not None else (b"", b"")
    secret = secret or mint.secret()
    current = [each for each in entries if each.stage is Stage.CURRENT]
    if current and all(each.plan.id in proofs and proofs[each.plan.id].complete for each in current):
        entries = [_done(each, proofs) for each in entries]
        former = b""
    wanted = {(each.name, _selector(each, pseudonym_key)): each for each in declared}
    shown = {each.plan.id for each in [each for each in entries if each.generation][-_GENERATIONS_KEPT:]}
    entries = [
        each for each in entries if each.stage is not Stage.DONE or _key(each) in wanted or each.plan.id in shown
    ]
    known = {_key(each) for each in entries}
    epoch = before.erasure_epoch if before is not None else 0
    new = [key for key in wanted if key not in known]
    for name, (tenant, user, document) in new:
        epoch += 1
        told = ErasurePlan(id=mint.nonce().hex(), epoch=epoch, tenant=tenant, user=user, document=document)
        entries.append(ErasureState(name=name, plan=told, stage=Stage.WAITING))
    return Erasures(tuple(entries), epoch, secret, former, bool(new))


def _done(each: ErasureState, proofs: Mapping[str, Proof]) -> ErasureState:
    if each.stage is not Stage.CURRENT:
        return each
    return replace(each, stage=Stage.DONE, proof=proofs[each.plan.id])


def _selector(entry: ErasureSpec, pseudonym_key: bytes) -> Selector:
    who = contributor(pseudonym_key, entry.tenant, entry.user)
    return who.tenant, who.user, entry.document or ""


def _key(each: ErasureState) -> tuple[str, Selector]:
    return each.name, (each.plan.tenant, each.plan.user, each.plan.document)
