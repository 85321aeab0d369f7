"""A gateway's part in an erase: caches emptied, once, with receipts for as long as they are asked for (I8)."""

from __future__ import annotations

import threading

import pytest

from kvgrove_gateway.erasures import Erasures
from kvgrove_gateway.router.keys import SEGMENT_BLOCKS, KnownChains
from kvgrove_link.member_key import MemberKey
from kvgrove_operator.verification import genuine
from kvgrove_protocol.chain import TOKEN_BYTES, block_keys
from kvgrove_protocol.control import GATEWAY, ErasurePlan, Hello, NamespacePlan, NodePlan, Revision
from kvgrove_protocol.fence import Fence
from kvgrove_protocol.identity import Purge
from kvgrove_protocol.receipts import EraseOutcome, Place

BLOCK = 4
ROOT = b"r" * 32
TOKENS = bytes(range(256)) * (2 * SEGMENT_BLOCKS * BLOCK * TOKEN_BYTES // 256)
KEY = MemberKey.fresh()
HELLO = Hello(member="gateway-0", role=GATEWAY, boot="a", public_key=KEY.public)


def plan(*ids: str, gone: tuple[str, ...] = ()) -> NodePlan:
    namespace = NamespacePlan(
        uid="u1",
        name="team/a",
        model="m",
        purge=Purge(1, b"n"),
        fence=Fence(1, 1, 1),
        erasures=[ErasurePlan(id=each, epoch=1, document="d") for each in ids],
    )
    return NodePlan(revision=Revision(1, 1), namespaces=[namespace], erase_uids=[*gone])


@pytest.fixture
def known() -> KnownChains:
    known = KnownChains(16)
    known.keys(ROOT, TOKENS, block_size=BLOCK)
    assert len(known) == 2
    return known


@pytest.fixture
def erasures(known: KnownChains) -> Erasures:
    return Erasures("gateway-0", "a", KEY, {Place.ASSEMBLY_CACHE: known.clear})


def test_i8_what_was_remembered_of_prompts_goes_and_a_signed_receipt_says_so(
    known: KnownChains, erasures: Erasures
) -> None:
    erasures.carry_out(plan("e1"))
    assert len(known) == 0
    (receipt,) = erasures.receipts()
    assert (receipt.uid, receipt.erasure, receipt.outcome) == ("u1", "e1", EraseOutcome.PROVEN)
    assert receipt.places == {Place.ASSEMBLY_CACHE: 2}
    assert genuine(receipt, HELLO)


def test_i8_a_namespace_that_is_gone_is_erased_too(known: KnownChains, erasures: Erasures) -> None:
    erasures.carry_out(plan(gone=("u9",)))
    assert len(known) == 0
    assert [(each.uid, each.erasure) for each in erasures.receipts()] == [("u9", "")]


def test_i8_an_erasure_is_carried_out_once_and_its_receipt_repeated(known: KnownChains, erasures: Erasures) -> None:
    erasures.carry_out(plan("e1"))
    first = erasures.receipts()
    known.keys(ROOT, TOKENS, block_size=BLOCK)  # new data
    erasures.carry_out(plan("e1"))
    assert len(known) == 2
    assert erasures.receipts() == first
    erasures.carry_out(plan("e1", "e2"))
    assert len(known) == 0
    assert [each.erasure for each in erasures.receipts()] == ["e1", "e2"]


def test_a_receipt_that_is_no_longer_asked_for_is_forgotten(erasures: Erasures) -> None:
    erasures.carry_out(plan("e1"))
    erasures.carry_out(plan())
    assert erasures.receipts() == []


def test_i8_keys_under_way_during_an_erase_do_not_come_back(
    known: KnownChains, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An assembly thread is in the middle of hashing when the cache is emptied."""
    hashing, erased = threading.Event(), threading.Event()

    def slow(*args: object, **kwargs: object) -> list[bytes]:
        hashing.set()
        assert erased.wait(30)
        return block_keys(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr("kvgrove_gateway.router.keys.block_keys", slow)
    other = TOKENS[::-1]
    found: list[list[bytes]] = []
    thread = threading.Thread(target=lambda: found.append(known.keys(ROOT, other, block_size=BLOCK)))
    thread.start()
    assert hashing.wait(30)
    assert known.clear() == 2
    erased.set()
    thread.join(30)
    assert len(known) == 0
    assert found == [block_keys(ROOT, other, block_size=BLOCK)]
