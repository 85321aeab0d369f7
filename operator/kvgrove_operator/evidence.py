"""What holders have proven of the erasures of one namespace (I8). Pure.

Whoever may hold something is asked: recorded holders of a lease, and connected members that say that they still hold
bytes. One of them counts as confirmed by its own receipt alone, signed, PROVEN and under the secret of now; once it is
gone it counts as gone, because what it leaves on a disk opens with the former secret only, which is destroyed when
nobody is pending. A holder that is cut off is neither: its memory is still there.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from kvgrove_operator.plan_state import Proof
from kvgrove_protocol.control import GATEWAY
from kvgrove_protocol.receipts import EraseOutcome, Receipt, SignedReceipt

Boot = tuple[str, str]
"""Member and boot."""

WHOLE = ""
"""In place of an erasure's id: the namespace is gone, and everything of it is to be erased."""

MAX_RECEIPTS = 256
"""Kept of each erasure; further holders are counted only."""


@dataclass
class _Erasure:
    expected: dict[Boot, EraseOutcome] = field(default_factory=dict)
    receipts: dict[Boot, SignedReceipt] = field(default_factory=dict)
    gone: int = 0


class Evidence:
    """The erasures of one namespace that members are told of now. Mutable."""

    def __init__(self) -> None:
        self._seal = b""
        self._erasures: dict[str, _Erasure] = {}

    def issue(self, ids: Iterable[str], seal: bytes, holders: Collection[Boot]) -> None:
        """These are asked for from now on, of ``holders`` and whoever joins them, under the secret of this seal."""
        self._erasures = {
            each: self._erasures.get(each) or _Erasure(dict.fromkeys(holders, EraseOutcome.PENDING)) for each in ids
        }
        if seal != self._seal:  # what daemons wrapped under another secret proves nothing any more
            self._seal = seal
            for erasure in self._erasures.values():
                for boot, signed in [*erasure.receipts.items()]:
                    if signed.receipt.seal:
                        del erasure.receipts[boot]
                        erasure.expected[boot] = EraseOutcome.PENDING

    def take(self, boot: Boot, role: str, receipts: Iterable[Receipt], public_key: bytes) -> None:
        """Note what a member reports. ``receipts``: of this namespace, their signatures checked."""
        for receipt in receipts:
            erasure = self._erasures.get(receipt.erasure)
            if erasure is None:
                continue
            sealed = role == GATEWAY or receipt.seal == self._seal
            erasure.expected[boot] = receipt.outcome if sealed else EraseOutcome.PENDING
            if sealed and (boot in erasure.receipts or len(erasure.receipts) < MAX_RECEIPTS):
                erasure.receipts[boot] = SignedReceipt(receipt=receipt, public_key=public_key)

    def expect(self, boots: Collection[Boot]) -> None:
        """Exactly these may hold something now. Those that are no more among them, and had proven nothing, are gone."""
        for erasure in self._erasures.values():
            for boot, outcome in [*erasure.expected.items()]:
                if boot not in boots and outcome is not EraseOutcome.PROVEN:
                    del erasure.expected[boot]
                    erasure.gone += 1
            for boot in boots:
                erasure.expected.setdefault(boot, EraseOutcome.PENDING)

    def proofs(self) -> Mapping[str, Proof]:
        """Erasure id -> how its holders stand to it."""
        return {each: _proof(erasure) for each, erasure in self._erasures.items()}


def _proof(erasure: _Erasure) -> Proof:
    proven = sum(outcome is EraseOutcome.PROVEN for outcome in erasure.expected.values())
    return Proof(
        confirmed=proven,
        gone=erasure.gone,
        pending=len(erasure.expected) - proven,
        receipts=tuple(erasure.receipts[boot] for boot in sorted(erasure.receipts)),
    )
