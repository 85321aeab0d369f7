"""Whether the object of a deleted namespace may go: only on evidence, or where somebody answers for what is missing.

Pure. Every member that is on record as a holder of the namespace owes a receipt. One that is gone for good needs none
once its leases have run out: the namespace's secret was destroyed before anybody was asked to erase, and without it
what is left on a disk is noise. Unreachable, failed and pending are different states with different cures.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from kvgrove_crds.namespace_access import PrivacySpec
from kvgrove_crds.reasons import ConditionReason
from kvgrove_operator.conditions import Judgement
from kvgrove_operator.plan_state import Proof
from kvgrove_operator.standing import Standing
from kvgrove_protocol.receipts import EraseOutcome

_NAMED = 5


@dataclass(frozen=True)
class Debt:
    """Who owes evidence, by member."""

    unreachable: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()
    """Connected, and has not answered yet."""

    @property
    def members(self) -> frozenset[str]:
        return frozenset((*self.unreachable, *self.failed, *self.pending))


@dataclass(frozen=True)
class Verdict:
    may_go: bool
    judgement: Judgement
    """Of ErasureVerified."""
    debt: Debt
    waived: tuple[str, ...] = ()


def debt_of(holders: Mapping[tuple[str, str], Standing], connected: Collection[str], proof: Proof) -> Debt:
    """``holders``: (member, boot) -> its standing. ``proof``: how the erasure stands."""
    incomplete = {
        signed.receipt.member for signed in proof.receipts if signed.receipt.outcome is EraseOutcome.INCOMPLETE
    }
    owing = sorted({member for (member, _), standing in holders.items() if standing is not Standing.CONFIRMED})
    unreachable = tuple(member for member in owing if member not in connected)
    failed = tuple(member for member in owing if member in connected and member in incomplete)
    pending = tuple(member for member in owing if member in connected and member not in incomplete)
    return Debt(unreachable, failed, pending)


def judge(privacy: PrivacySpec, proof: Proof, debt: Debt, *, erased: bool) -> Verdict:
    """``erased``: every holder gave its evidence, or is gone with its leases."""
    if erased:
        counts = f"{proof.confirmed} receipts" + (f", {proof.gone} gone, shredded" if proof.gone else "")
        return Verdict(True, Judgement(True, ConditionReason.ERASURE_CONFIRMED, counts), Debt())
    waived = tuple(sorted(debt.members & set(privacy.waiver.nodes))) if privacy.waiver is not None else ()
    if privacy.waiver is not None and waived and debt.members <= set(waived):
        message = (
            f"waived for {_list(waived)} by {privacy.waiver.approved_by}: {privacy.waiver.reason}; "
            f"{proof.confirmed} receipts, {proof.gone} gone"
        )
        return Verdict(True, Judgement(False, ConditionReason.ERASURE_WAIVED, message), debt, waived)
    message = _missing(debt)
    if privacy.erase == "BestEffort" and not debt.pending:
        said = f"{message}; spec.privacy.erase is BestEffort, so the object goes without"
        return Verdict(True, Judgement(False, ConditionReason.ERASURE_PENDING, said), debt, waived)
    if debt.unreachable:
        return Verdict(False, Judgement(False, ConditionReason.NODE_UNREACHABLE, message), debt, waived)
    if debt.failed:
        return Verdict(False, Judgement(False, ConditionReason.NODE_FAILED, message), debt, waived)
    return Verdict(False, Judgement(False, ConditionReason.ERASURE_PENDING, message), debt, waived)


def _missing(debt: Debt) -> str:
    parts = []
    if debt.unreachable:
        cure = "bring them back, delete their Node objects if they are gone for good, or set spec.privacy.waiver"
        parts.append(f"not heard: {_list(debt.unreachable)} ({cure})")
    if debt.failed:
        parts.append(f"could not wipe everything and try again: {_list(debt.failed)}")
    if debt.pending:
        parts.append(f"erasing: {_list(debt.pending)}")
    return "; ".join(parts) or "waiting for the members' first reports"


def _list(names: Collection[str]) -> str:
    shown = ", ".join([*names][:_NAMED])
    return shown + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
