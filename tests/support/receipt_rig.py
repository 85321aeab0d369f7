"""Receipts as members sign them."""

from __future__ import annotations

from kvgrove_link.member_key import MemberKey
from kvgrove_protocol.receipts import EraseOutcome, Receipt, seal_of

KEY = MemberKey.fresh()
SECRET = b"s" * 32
SEAL = seal_of(SECRET)


def receipt(
    uid: str,
    erasure: str = "",
    *,
    member: str = "node-0",
    boot: str = "a",
    outcome: EraseOutcome = EraseOutcome.PROVEN,
    seal: bytes = SEAL,
    key: MemberKey = KEY,
) -> Receipt:
    """Signed with ``key``."""
    return key.sign(Receipt(uid=uid, erasure=erasure, member=member, boot=boot, outcome=outcome, seal=seal))
