"""Receipts: what is signed is all that is said, and nothing else can be made of it (I8)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kvgrove_protocol.control import TO_PLANNER, NodeReport, Revision
from kvgrove_protocol.receipts import EraseFault, EraseOutcome, Place, Receipt, seal_of, signed_bytes

RECEIPT = Receipt(
    uid="u1",
    erasure="e1",
    member="node-0",
    boot="ab",
    outcome=EraseOutcome.PENDING,
    places={Place.HOST: 3},
    pending={Place.HOST: 1},
    seal=b"12345678",
)


@pytest.mark.parametrize(
    "change",
    [
        {"uid": "u2"},
        {"erasure": ""},
        {"member": "node-1"},
        {"boot": "cd"},
        {"outcome": EraseOutcome.PROVEN},
        {"places": {Place.HOST: 4}},
        {"places": {Place.DISK: 3}},
        {"places": {Place.HOST: 3, Place.DISK: 0}},
        {"pending": {}},
        {"reason": EraseFault.NOT_EMPTY},
        {"seal": b"87654321"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_i8_a_change_of_any_field_needs_another_signature(change: dict[str, Any]) -> None:
    assert signed_bytes(msgspec.structs.replace(RECEIPT, **change)) != signed_bytes(RECEIPT)


def test_i8_every_field_but_the_signature_is_signed() -> None:
    assert signed_bytes(msgspec.structs.replace(RECEIPT, signature=b"x")) == signed_bytes(RECEIPT)
    signed = {field.name for field in msgspec.structs.fields(Receipt)} - {"signature"}
    assert signed == {"uid", "erasure", "member", "boot", "outcome", "places", "pending", "reason", "seal"}


def test_the_order_in_which_places_are_counted_is_nothing() -> None:
    one, other = {Place.HOST: 1, Place.DISK: 2}, {Place.DISK: 2, Place.HOST: 1}
    assert signed_bytes(msgspec.structs.replace(RECEIPT, places=one)) == signed_bytes(
        msgspec.structs.replace(RECEIPT, places=other)
    )


def test_receipts_travel_in_reports() -> None:
    report = NodeReport(report_id=1, applied=Revision(1, 1), receipts=[RECEIPT])
    assert TO_PLANNER.decode(TO_PLANNER.encode(report)) == report


def test_i12_a_seal_names_a_secret_without_holding_it() -> None:
    secret = bytes(range(32))
    assert len(seal_of(secret)) == 8
    assert seal_of(secret) not in secret
    assert seal_of(secret) != seal_of(secret[::-1])
    assert seal_of(b"") == b""


def test_the_places_are_designs_closed_list() -> None:
    assert [place.value for place in Place] == [
        "device",
        "host",
        "disk",
        "dead_boots",
        "engine_cache",
        "transfers",
        "warm_lists",
        "assembly_cache",
        "response_caches",
    ]
