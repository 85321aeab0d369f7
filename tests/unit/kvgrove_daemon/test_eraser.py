"""Erasures over a pool and a real disk tier, through crashes at every step (I8)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from erase_rig import JANE, JOE, SECRETS, UID, WHOLE, Boot, EraseOrder, erase_user, order

from kvgrove_daemon.cache.subjects import Subject
from kvgrove_daemon.cache.tiers.disk import SecretUnknown
from kvgrove_daemon.cache.tiers.medium import MediumFailed
from kvgrove_daemon.eraser import ADOPTION_S
from kvgrove_protocol.identity import Contributor
from kvgrove_protocol.receipts import EraseFault, EraseOutcome, Place, seal_of

Start = Callable[..., Boot]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts the next boot of one node; the one before must have crashed or been closed."""
    boots: list[Boot] = []

    def begin(*, loaded: bool = True) -> Boot:
        boots.append(Boot(tmp_path, loaded=loaded))
        return boots[-1]

    yield begin
    for boot in boots:
        boot.close()


def two_users(boot: Boot) -> None:
    """Jane and Joe each have three blocks in the pool and on disk."""
    boot.grant()
    boot.keep_on_disk(boot.chain([1, 2, 3], JANE))
    boot.keep_on_disk(boot.chain([7, 8, 9], JOE))


def jane_of(boot: Boot) -> tuple[int, int]:
    return boot.hits(boot.chain([1, 2, 3], JANE))


def joe_of(boot: Boot) -> tuple[int, int]:
    return boot.hits(boot.chain([7, 8, 9], JOE))


def test_i8_a_users_blocks_go_everywhere_and_the_others_survive_under_the_new_secret(start: Start) -> None:
    boot = start()
    two_users(boot)
    boot.eraser.follow([erase_user(JANE)], settled=True)
    assert jane_of(boot) == (0, 0)  # at once
    assert boot.receipt().outcome is EraseOutcome.PENDING
    boot.settle()
    receipt = boot.receipt()
    assert receipt.outcome is EraseOutcome.PROVEN
    assert (receipt.places[Place.HOST], receipt.places[Place.DISK], receipt.pending) == (3, 3, {})
    assert receipt.seal == seal_of(SECRETS[1])
    assert not any(boot.in_memory(value) for value in (1, 2, 3))
    assert boot.files() == 3
    assert joe_of(boot) == (3, 3)
    assert boot.read_back(boot.chain([7, 8, 9], JOE))
    boot.disk.set_secret(UID, SECRETS[0])  # the old one opens nothing any more
    with pytest.raises(SecretUnknown):
        boot.read_back(boot.chain([7, 8, 9], JOE))


@pytest.mark.parametrize("subject", [Subject(UID, contributor=Contributor(b"acme")), Subject(UID, document="manual")])
def test_i8_a_tenant_and_a_document_are_erased_alike(start: Start, subject: Subject) -> None:
    boot = start()
    boot.grant()
    chain = boot.chain([1, 2, 3], JANE, document=0)
    boot.keep_on_disk(chain)
    boot.eraser.follow([order(subject)], settled=True)
    boot.settle()
    assert boot.receipt().outcome is EraseOutcome.PROVEN
    assert boot.hits(chain) == (0, 0)
    assert boot.files() == 0
    assert not any(boot.in_memory(value) for value in (1, 2, 3))


def test_i8_a_whole_namespace_needs_no_secret(start: Start) -> None:
    boot = start()
    two_users(boot)
    boot.memory.raise_to({UID: 1})
    boot.eraser.follow([EraseOrder(UID, WHOLE, Subject(UID))], settled=True)
    boot.settle()
    receipt = boot.receipt(WHOLE)
    assert (receipt.outcome, receipt.seal) == (EraseOutcome.PROVEN, b"")
    assert receipt.places[Place.DISK] == 6
    assert boot.files() == 0
    assert not any(boot.in_memory(value) for value in range(10))
    assert UID not in boot.memory.epochs


def test_i8_what_the_plan_does_not_know_is_erased_without_a_receipt(start: Start) -> None:
    boot = start()
    two_users(boot)
    boot.eraser.follow([EraseOrder(UID, WHOLE, Subject(UID), asked=False)], settled=True)
    boot.settle()
    assert boot.files() == 0
    assert boot.eraser.receipts() == ()


def test_i8_a_request_that_streams_on_keeps_the_receipt_pending_and_leaves_nothing(start: Start) -> None:
    boot = start()
    two_users(boot)
    build = boot.begin(boot.chain([1, 2, 3, 4], JANE))
    boot.eraser.follow([erase_user(JANE)], settled=True)
    boot.settle()
    receipt = boot.receipt()
    assert receipt.outcome is EraseOutcome.PENDING
    assert receipt.pending[Place.HOST] == 4  # three blocks that it reads, and its own
    assert receipt.places[Place.TRANSFERS] == 1
    build.commit(4, lambda: True)  # the answer goes on, nothing of it is stored
    build.finish()
    boot.settle()
    assert boot.receipt().outcome is EraseOutcome.PROVEN
    assert boot.hits(boot.chain([1, 2, 3, 4], JANE)) == (0, 0)
    assert not any(boot.in_memory(value) for value in (1, 2, 3, 4))


def test_i8_a_copy_under_way_is_caught(start: Start) -> None:
    boot = start()
    boot.grant()
    chain = boot.chain([1, 2, 3], JANE)
    boot.serve(chain)
    tail = boot.store.resident.index.find(chain.keys[-1])
    assert tail is not None
    boot.stack.writes[0].soon(tail)
    boot.stack.tend()
    assert boot.workers.waiting
    boot.eraser.follow([erase_user(JANE)], settled=True)
    boot.turn()
    assert boot.receipt().pending[Place.DISK] == 1
    boot.settle()
    assert boot.receipt().outcome is EraseOutcome.PROVEN
    assert boot.hits(chain) == (0, 0)
    assert boot.files() == 0


def test_i8_new_data_of_the_same_user_stays(start: Start) -> None:
    boot = start()
    two_users(boot)
    boot.eraser.follow([erase_user(JANE)], settled=True)
    boot.settle()
    boot.grant(secret=1)
    again = boot.chain([1, 2, 3], JANE)
    boot.keep_on_disk(again)
    boot.eraser.follow([erase_user(JANE)], settled=True)  # the plan still asks
    boot.settle()
    assert boot.hits(again) == (3, 3)
    assert boot.receipt().outcome is EraseOutcome.PROVEN


def test_i8_another_secret_asks_for_another_rewrap(start: Start) -> None:
    boot = start()
    two_users(boot)
    first, second = erase_user(JANE), order(Subject(UID, document="manual"), "e2")
    boot.eraser.follow([first, second], settled=True)
    boot.settle()
    assert {each.seal for each in boot.eraser.receipts()} == {seal_of(SECRETS[1])}
    boot.eraser.follow([order(Subject(UID, document="manual"), "e2", secret=2, former=1)], settled=True)
    assert [each.outcome for each in boot.eraser.receipts()] == [EraseOutcome.PENDING]
    boot.settle()
    (receipt,) = boot.eraser.receipts()
    assert (receipt.outcome, receipt.seal) == (EraseOutcome.PROVEN, seal_of(SECRETS[2]))
    boot.disk.set_secret(UID, SECRETS[2])
    assert boot.read_back(boot.chain([7, 8, 9], JOE))


def test_i8_survivors_are_wrapped_once_when_the_last_of_several_is_wiped(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot = start()
    two_users(boot)
    rewraps: list[str] = []
    real = boot.disk.rewrap
    monkeypatch.setattr(boot.disk, "rewrap", lambda uid, old, new: (rewraps.append(uid), real(uid, old, new))[1])
    reader = boot.begin(boot.chain([7, 8, 9, 10], JOE))
    boot.eraser.follow([erase_user(JANE), erase_user(JOE, "e2")], settled=True)
    boot.settle()
    assert rewraps == []
    reader.cancel()
    boot.settle()
    assert rewraps == [UID]
    assert {each.outcome for each in boot.eraser.receipts()} == {EraseOutcome.PROVEN}


def test_i8_a_disk_that_refuses_is_named_and_tried_again(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    boot = start()
    two_users(boot)
    refusing = True
    real = boot.disk.rewrap

    def rewrap(uid: str, old: bytes, new: bytes) -> object:
        if refusing:
            raise MediumFailed("disk: EIO")
        return real(uid, old, new)

    monkeypatch.setattr(boot.disk, "rewrap", rewrap)
    boot.eraser.follow([erase_user(JANE)], settled=True)
    boot.settle()
    receipt = boot.receipt()
    assert (receipt.outcome, receipt.reason, receipt.seal) == (EraseOutcome.INCOMPLETE, EraseFault.REWRAP_FAILED, b"")
    refusing = False
    boot.now += 10
    boot.settle()
    assert (boot.receipt().outcome, boot.receipt().reason) == (EraseOutcome.PROVEN, None)


# -- restarts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", range(8))
def test_i8_a_node_that_dies_at_any_step_comes_back_and_ends_proven(start: Start, rounds: int) -> None:
    boot = start()
    two_users(boot)
    boot.eraser.follow([erase_user(JANE)], settled=True)
    for step in range(rounds):  # now the core's turn, now one piece of work of a worker
        if step % 2 == 0:
            boot.turn()
        elif boot.workers.waiting:
            boot.workers.run_one()
    boot.crash()
    again = start(loaded=False)
    again.eraser.follow([erase_user(JANE)], settled=False)
    again.settle()
    assert again.receipt().outcome is EraseOutcome.PENDING  # its disk was not looked at yet
    assert again.receipt().pending == {Place.DISK: 1}
    again.load()
    again.grant(secret=1, former=0)
    again.eraser.follow([erase_user(JANE)], settled=True)
    again.settle()
    assert again.receipt().outcome is EraseOutcome.PROVEN
    assert again.receipt().places[Place.DEAD_BOOTS] == 1
    assert jane_of(again) == (0, 0)
    again.crash()
    last = start()
    last.grant(secret=0)  # whoever has the old secret finds nothing
    assert (jane_of(last), joe_of(last)) == ((0, 0), (0, 0))


def test_i8_a_node_that_was_away_erases_before_anything_is_adopted(start: Start) -> None:
    boot = start()
    two_users(boot)
    boot.crash()
    again = start(loaded=False)
    again.eraser.follow([erase_user(JANE)], settled=False)
    again.load()
    again.adoption.keep({})
    again.turn()
    again.grant(secret=1, former=0)
    assert jane_of(again) == (0, 0)
    again.eraser.follow([erase_user(JANE)], settled=True)
    again.settle()
    assert again.receipt().outcome is EraseOutcome.PROVEN


def test_i8_what_an_earlier_boot_carried_out_is_not_done_again(start: Start) -> None:
    boot = start()
    two_users(boot)
    boot.eraser.follow([erase_user(JANE)], settled=True)
    boot.settle()
    boot.grant(secret=1)
    boot.keep_on_disk(boot.chain([1, 2, 3], JANE))  # new data
    boot.crash()
    again = start()
    again.eraser.follow([erase_user(JANE)], settled=True)
    again.turn()  # survivors are not wrapped anew before they were adopted
    again.grant(secret=1, former=0)
    again.settle()
    assert (jane_of(again), joe_of(again)) == ((0, 3), (0, 3))
    assert again.receipt().outcome is EraseOutcome.PROVEN
    assert again.receipt().boot == again.id


def test_i11_a_rewrap_waits_for_an_adoption_that_never_comes_only_so_long(start: Start) -> None:
    boot = start()
    two_users(boot)
    boot.memory.note_wiped(UID, "e1")
    boot.crash()
    again = start()
    again.eraser.follow([erase_user(JANE)], settled=True)
    again.settle()
    assert again.receipt().outcome is EraseOutcome.PENDING
    again.now += ADOPTION_S
    again.settle()
    assert again.receipt().outcome is EraseOutcome.PROVEN
    assert again.files() == 0


def test_i8_a_directory_that_no_model_opens_is_emptied_of_the_namespace(start: Start) -> None:
    boot = start()
    two_users(boot)
    boot.crash()
    again = start(loaded=False)
    again.eraser.follow([erase_user(JANE)], settled=False)
    again.settle()
    assert again.receipt().pending[Place.DISK] == 1
    again.eraser.follow([erase_user(JANE)], settled=True)  # the model is planned no more, or does not load
    again.settle()
    assert again.receipt().outcome is EraseOutcome.PROVEN
    assert again.files() == 0


def test_i12_an_order_does_not_show_its_secrets() -> None:
    assert repr(SECRETS[1]) not in repr(erase_user(JANE))
