"""The disk tier's medium: what it keeps, what it gives back, and to whom."""

from __future__ import annotations

import dataclasses
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import msgspec
import pytest
from disk_rig import (
    BLOCK_BYTES,
    FILE_BYTES,
    LAYOUT,
    NEXT_SECRET,
    OTHER_ROOT,
    OTHER_UID,
    ROOT,
    SECRET,
    UID,
    adopt_all,
    body_of,
    chain,
    damage,
    extents_in,
    files_in,
    open_disk,
)
from watched_filesystem import WatchedFilesystem

from kvgrove_daemon.cache.tiers.disk import (
    Cause,
    DirectoryBusy,
    DirectoryUnusable,
    DiskMedium,
    SecretUnknown,
)
from kvgrove_daemon.cache.tiers.medium import Facts, MediumCorrupt, MediumFailed
from kvgrove_protocol.errors import Malformed, Retryable


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "disk"


def filled(directory: Path, *chains: list[Facts]) -> DiskMedium:
    """A medium that holds these chains, in slots from 0 on."""
    disk = open_disk(directory)
    for facts in chains:
        disk.set_secret(facts[0].namespace, SECRET)
    blocks = [facts for one in chains for facts in one]
    disk.write_many([(slot, facts, body_of(facts)) for slot, facts in enumerate(blocks)])
    return disk


def reopened(disk: DiskMedium, directory: Path, **options: int) -> DiskMedium:
    disk.close()
    again = open_disk(directory, **options)
    again.set_secret(UID, SECRET)
    again.set_secret(OTHER_UID, SECRET)
    return again


# -- writing and reading -----------------------------------------------------------------------------------------------


def test_what_is_written_is_read_and_takes_one_file_of_the_size_that_was_said(directory: Path) -> None:
    facts = chain(3)
    disk = filled(directory, facts)
    assert [disk.read(slot, each) for slot, each in enumerate(facts)] == [body_of(each) for each in facts]
    assert [path.stat().st_size for path in extents_in(directory)] == [FILE_BYTES] * 3
    assert disk.num_slots == 16


def test_a_slot_is_free_for_another_block_once_it_was_released(directory: Path) -> None:
    one, two = chain(1), chain(1, seed=5)
    disk = filled(directory, one)
    with pytest.raises(ValueError, match="in use"):
        disk.write(0, two[0], body_of(two[0]))
    disk.release([0])
    disk.write(0, two[0], body_of(two[0]))
    assert disk.read(0, two[0]) == body_of(two[0])
    assert len(extents_in(directory)) == 1
    with pytest.raises(MediumCorrupt):
        disk.read(0, one[0])  # COR-14: never found under what the slot held before


@pytest.mark.parametrize("length", [BLOCK_BYTES - 1, BLOCK_BYTES + 1])
def test_a_body_of_another_size_is_refused_before_anything_is_written(directory: Path, length: int) -> None:
    disk = filled(directory, chain(1))
    with pytest.raises(ValueError, match="body"):
        disk.write(4, chain(1)[0], bytes(length))
    assert len(files_in(directory)) == 1


def test_labels_that_do_not_fit_are_refused_by_name_and_leave_nothing(directory: Path) -> None:
    disk = filled(directory, chain(1))
    facts = chain(2)[1]
    crowded = dataclasses.replace(facts, documents=("d" * 250,) * 20)
    with pytest.raises(MediumFailed) as caught:
        disk.write(4, crowded, body_of(facts))
    assert caught.value.code == "tier_facts_too_large"
    assert len(files_in(directory)) == 1


def test_no_token_key_or_realm_is_in_clear_on_disk(directory: Path) -> None:
    facts = chain(2)
    filled(directory, facts)
    everything = b"".join(path.read_bytes() for path in files_in(directory))
    for each in facts:
        for told in (each.tokens, each.tokens[:8], each.key, each.root, body_of(each)[:16], b"handbook"):
            assert told not in everything
    assert SECRET not in everything
    assert everything.count(UID.encode()) == 2  # so that it can be erased without a secret


def test_equal_blocks_of_two_extents_share_no_bytes_but_the_header(directory: Path) -> None:
    facts = chain(1)
    disk = filled(directory, facts)
    disk.write(7, facts[0], body_of(facts[0]))
    one, two = (path.read_bytes() for path in extents_in(directory))
    assert one[4096:8192] != two[4096:8192]
    assert not set(chunks(one[3 * 4096 :])) & set(chunks(two[3 * 4096 :]))


def chunks(data: bytes) -> list[bytes]:
    return [data[at : at + 16] for at in range(0, len(data) - 16, 16)]


def test_iso_12_many_sessions_through_disk_and_back_at_once_each_get_their_own(directory: Path) -> None:
    disk = open_disk(directory, slots=8)
    disk.set_secret(UID, SECRET)

    def session(number: int) -> None:
        for turn in range(25):
            [facts] = chain(1, seed=1000 * number + turn)
            nonce = f"session {number} turn {turn}".encode().ljust(BLOCK_BYTES, b".")
            disk.write(number, facts, nonce)
            assert disk.read(number, facts) == nonce
            (disk.erase if turn % 2 else disk.release)([number])

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(session, range(8)))
    assert files_in(directory) == []
    assert disk.state().files == {}


def test_iso_12_a_file_under_another_ones_name_is_never_read_as_that_one(directory: Path) -> None:
    facts = chain(2)
    disk = filled(directory, facts)
    first, second = extents_in(directory)
    second.write_bytes(first.read_bytes())
    results = []
    for slot, each in enumerate(facts):
        try:
            results.append(disk.read(slot, each) == body_of(each))
        except MediumCorrupt:
            results.append(None)
    assert sorted(results, key=str) == [None, True]
    assert disk.state().set_aside == 1


def test_iso_12_a_body_moved_into_another_extent_of_the_same_namespace_does_not_open(directory: Path) -> None:
    facts = chain(2)
    disk = filled(directory, facts)
    first, second = extents_in(directory)
    body_at = FILE_BYTES - BLOCK_BYTES - 16
    second.write_bytes(second.read_bytes()[:body_at] + first.read_bytes()[body_at:])
    outcomes = [None if reads_corrupt(disk, slot, each) else slot for slot, each in enumerate(facts)]
    assert outcomes.count(None) == 1


def test_iso_12_each_fact_that_makes_a_block_is_proven_on_reading(directory: Path) -> None:
    [facts] = chain(1)
    others: dict[str, Any] = {
        "root": OTHER_ROOT,
        "key": b"k" * 32,
        "parent": b"p" * 32,
        "depth": 1,
        "tokens": bytes(len(facts.tokens)),
        "fold": b"another realm",
        "namespace": OTHER_UID,
    }
    for field, value in others.items():
        disk = filled(directory, [facts])
        assert reads_corrupt(disk, 0, dataclasses.replace(facts, **{field: value})), field
        disk.erase_namespace(UID)
        disk.close()


def reads_corrupt(disk: DiskMedium, slot: int, facts: Facts) -> bool:
    try:
        assert disk.read(slot, facts) == body_of(facts)
    except MediumCorrupt:
        return True
    return False


def test_con_03_a_block_that_is_half_written_is_not_found_and_then_is(directory: Path) -> None:
    half, go_on = Event(), Event()

    def pause(what: str) -> None:
        if what == "half of a write":
            half.set()
            assert go_on.wait(60)

    disk = open_disk(directory, filesystem=WatchedFilesystem(pause))
    disk.set_secret(UID, SECRET)
    [facts] = chain(1)
    with ThreadPoolExecutor(1) as writer:
        written = writer.submit(disk.write, 3, facts, body_of(facts))
        assert half.wait(60)
        with pytest.raises(MediumFailed):
            disk.read(3, facts)
        assert extents_in(directory) == []
        assert disk.state().held == 0
        go_on.set()
        written.result(60)
    assert disk.read(3, facts) == body_of(facts)


# -- secrets -----------------------------------------------------------------------------------------------------------


def test_without_the_secret_nothing_opens_and_with_it_everything_again(directory: Path) -> None:
    [facts] = chain(1)
    disk = filled(directory, [facts])
    disk.forget_secret(UID)
    with pytest.raises(SecretUnknown):
        disk.read(0, facts)
    with pytest.raises(SecretUnknown):
        disk.write(1, facts, body_of(facts))
    with pytest.raises(SecretUnknown):
        disk.survey(UID, {ROOT})
    disk.set_secret(UID, NEXT_SECRET)
    with pytest.raises(SecretUnknown):
        disk.read(0, facts)
    disk.set_secret(UID, SECRET)
    assert disk.read(0, facts) == body_of(facts)
    assert disk.state().files == {}


def test_a_write_whose_lease_ends_meanwhile_leaves_nothing(directory: Path) -> None:
    def lease_ends(what: str) -> None:
        if what == "sync":
            disk.forget_secret(UID)

    disk = open_disk(directory, filesystem=WatchedFilesystem(lease_ends))
    disk.set_secret(UID, SECRET)
    [facts] = chain(1)
    with pytest.raises(SecretUnknown):
        disk.write(0, facts, body_of(facts))
    assert files_in(directory) == []
    disk.set_secret(UID, SECRET)
    with pytest.raises(MediumFailed, match="empty"):
        disk.read(0, facts)


def test_a_write_under_a_secret_that_was_replaced_meanwhile_leaves_nothing(directory: Path) -> None:
    seen = []

    def rewrap(what: str) -> None:
        if what == "sync" and not seen:
            seen.append(disk.rewrap(UID, SECRET, NEXT_SECRET))

    disk = open_disk(directory, filesystem=WatchedFilesystem(rewrap))
    disk.set_secret(UID, SECRET)
    [facts] = chain(1)
    with pytest.raises(SecretUnknown):
        disk.write(0, facts, body_of(facts))
    assert files_in(directory) == []


def test_a_short_secret_is_refused(directory: Path) -> None:
    with pytest.raises(Malformed, match="secret"):
        open_disk(directory).set_secret(UID, b"short")


def test_survivors_are_rewrapped_and_the_old_secret_opens_nothing(directory: Path) -> None:
    facts = chain(3)
    disk = filled(directory, facts)
    disk.erase([2])
    counts = disk.rewrap(UID, SECRET, NEXT_SECRET)
    assert (counts.done, counts.already, counts.lost, counts.discarded) == (2, 0, 0, 0)
    assert [disk.read(slot, facts[slot]) for slot in (0, 1)] == [body_of(facts[slot]) for slot in (0, 1)]
    disk.set_secret(UID, SECRET)
    with pytest.raises(SecretUnknown):
        disk.read(0, facts[0])
    assert disk.rewrap(UID, SECRET, NEXT_SECRET).already == 2


def test_a_copy_from_before_a_rewrap_does_not_open_after_it(directory: Path) -> None:
    [facts] = chain(1)
    disk = filled(directory, [facts])
    [path] = extents_in(directory)
    copy = path.read_bytes()
    disk.rewrap(UID, SECRET, NEXT_SECRET)
    path.write_bytes(copy)
    with pytest.raises(SecretUnknown):
        disk.read(0, facts)


def test_a_rewrap_leaves_other_namespaces_alone_and_discards_what_nobody_adopted(directory: Path) -> None:
    ours, theirs = chain(2), chain(2, seed=3, namespace=OTHER_UID)
    disk = reopened(filled(directory, ours, theirs), directory)
    for slot, survivor in enumerate(disk.survey(OTHER_UID, {ROOT})):
        disk.adopt(slot, survivor)
    assert disk.rewrap(UID, SECRET, NEXT_SECRET).discarded == 2
    assert disk.read(0, theirs[0]) == body_of(theirs[0])
    assert disk.namespaces() == {OTHER_UID}


# -- adoption ----------------------------------------------------------------------------------------------------------


def test_what_was_written_is_adopted_parents_first_with_all_its_facts(directory: Path) -> None:
    facts, other = chain(5), chain(3, seed=9)
    disk = reopened(filled(directory, facts, other), directory)
    survivors = disk.survey(UID, {ROOT})
    assert {survivor.facts for survivor in survivors} == {*facts, *other}
    assert [survivor.facts.depth for survivor in survivors] == sorted(each.depth for each in (*facts, *other))
    adopted = adopt_all(disk)
    assert all(disk.read(slot, each) == body_of(each) for slot, each in adopted.items())


def test_a_restored_block_says_when_it_was_written(directory: Path) -> None:
    disk = open_disk(directory, wall_clock=lambda: 1234.5)
    disk.set_secret(UID, SECRET)
    [facts] = chain(1)
    disk.write(0, facts, body_of(facts))
    [survivor] = reopened(disk, directory).survey(UID, {ROOT})
    assert survivor.written_at == 1234.5


def test_a_file_that_becomes_another_one_before_it_is_adopted_is_set_aside(directory: Path) -> None:
    facts = chain(2)
    disk = reopened(filled(directory, facts), directory)
    first, second = extents_in(directory)
    second.write_bytes(first.read_bytes())
    assert len(disk.survey(UID, {ROOT})) <= 1
    assert disk.state().files[Cause.CORRUPT] == disk.state().set_aside == 1


@pytest.mark.parametrize(
    ("roots", "secret", "cause"),
    [({OTHER_ROOT}, SECRET, Cause.ROOT), (set(), SECRET, Cause.ROOT), ({ROOT}, NEXT_SECRET, Cause.SECRET)],
)
def test_another_epoch_or_secret_is_counted_and_not_adopted(
    directory: Path, roots: set[bytes], secret: bytes, cause: Cause
) -> None:
    disk = reopened(filled(directory, chain(2)), directory)
    disk.set_secret(UID, secret)
    assert disk.survey(UID, roots) == disk.survey(UID, roots) == []
    assert disk.state().files == {cause: 2}  # once, however often one looks
    assert disk.discard(UID) == 2
    assert files_in(directory) == []


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "bfloat16"},
        {"block_size": 16},
        {"num_layers": 3},
        {"num_kv_heads": 4},
        {"head_dim": 16},
        {"tensor_parallel_size": 2},
        {"tensor_parallel_rank": 1},
    ],
)
def test_cor_09_bytes_of_another_shape_are_never_loaded(directory: Path, change: dict[str, str | int]) -> None:
    assert_other_layout_is_refused(directory, change)


def test_cor_10_bytes_in_another_memory_order_are_rejected_by_the_header(directory: Path) -> None:
    assert_other_layout_is_refused(directory, {"abi": "kvgrove/token-major/1"})


def assert_other_layout_is_refused(directory: Path, change: dict[str, str | int]) -> None:
    filled(directory, chain(2)).close()
    disk = open_disk(directory, layout=msgspec.structs.replace(LAYOUT, **change))
    disk.set_secret(UID, SECRET)
    assert disk.survey(UID, {ROOT}) == []
    assert disk.state().files == {Cause.LAYOUT: 2}
    assert disk.namespaces() == {UID}
    assert disk.erase_namespace(UID) == 2
    assert files_in(directory) == []


def test_i6_a_block_without_its_ancestors_is_not_adopted(directory: Path) -> None:
    facts = chain(4)
    disk = filled(directory, facts)
    disk.release([1])
    disk = reopened(disk, directory)
    assert list(adopt_all(disk).values()) == facts[:1]
    assert disk.state().files == {Cause.ORPHAN: 2}


def test_a_block_that_is_there_already_is_not_adopted_twice(directory: Path) -> None:
    facts = chain(2)
    disk = filled(directory, facts)
    disk.write(9, facts[0], body_of(facts[0]))
    disk = reopened(disk, directory)
    assert list(adopt_all(disk).values()) == facts
    assert disk.state().files == {Cause.DUPLICATE: 1}
    disk = reopened(disk, directory)
    disk.write(5, facts[0], body_of(facts[0]))  # computed anew before the survey
    assert [survivor.facts for survivor in disk.survey(UID, {ROOT})] == facts[1:]


def test_i11_what_waits_gives_way_to_what_is_written_deepest_first(directory: Path) -> None:
    facts, new = chain(4), chain(3, seed=2)
    disk = reopened(filled(directory, facts), directory, slots=5)
    survivors = disk.survey(UID, {ROOT})
    disk.write_many([(slot, each, body_of(each)) for slot, each in enumerate(new)])
    assert len(extents_in(directory)) == 5
    assert [disk.adopt(3, survivor) for survivor in reversed(survivors[2:])] == [False, False]
    assert [disk.adopt(3 + at, survivor) for at, survivor in enumerate(survivors[:2])] == [True, True]
    assert disk.state().files == {Cause.SURPLUS: 2}


def test_a_smaller_disk_keeps_the_beginnings(directory: Path) -> None:
    facts = chain(4)
    disk = reopened(filled(directory, facts), directory, slots=3)
    assert list(adopt_all(disk).values()) == facts[:3]
    assert disk.state().files == {Cause.SURPLUS: 1}
    disk = reopened(disk, directory, slots=0)
    assert disk.num_slots == 0
    assert files_in(directory) == []


def test_a_survivor_that_gave_way_is_not_adopted(directory: Path) -> None:
    disk = reopened(filled(directory, chain(1)), directory)
    [survivor] = disk.survey(UID, {ROOT})
    disk.discard(UID)
    assert not disk.adopt(0, survivor)
    assert disk.state().held == 0


# -- leaving -----------------------------------------------------------------------------------------------------------


def test_erased_slots_hold_nothing_and_neither_does_a_later_start(directory: Path) -> None:
    facts = chain(3)
    disk = filled(directory, facts)
    paths = extents_in(directory)
    kept = [path.open("rb") for path in paths]  # what is unlinked is still reachable this way
    assert disk.erase([1, 2, 9]) == 3
    with pytest.raises(MediumFailed):
        disk.read(1, facts[1])
    emptied = sum(not any(file.read()) for file in kept)
    for file in kept:
        file.close()
    assert emptied == 2
    assert list(adopt_all(reopened(disk, directory)).values()) == facts[:1]


def test_a_namespace_is_erased_without_its_secret_adopted_or_not(directory: Path) -> None:
    ours, theirs = chain(3), chain(2, seed=3, namespace=OTHER_UID)
    disk = filled(directory, ours, theirs)
    disk.close()
    disk = open_disk(directory)
    assert disk.namespaces() == {UID, OTHER_UID}
    assert disk.erase_namespace(UID) == 3
    assert disk.namespaces() == {OTHER_UID}
    disk.set_secret(OTHER_UID, SECRET)
    assert list(adopt_all(disk, namespace=OTHER_UID).values()) == theirs
    assert disk.erase_namespace(OTHER_UID) == 2
    assert files_in(directory) == []
    with pytest.raises(MediumFailed):
        disk.read(0, theirs[0])
    with pytest.raises(SecretUnknown):  # a write that is late finds nothing to wrap its key with
        disk.write(0, theirs[0], body_of(theirs[0]))


def test_a_namespace_is_erased_from_the_files_that_were_set_aside_too(directory: Path) -> None:
    ours, theirs = chain(1), chain(1, seed=3, namespace=OTHER_UID)
    disk = filled(directory, ours, theirs)
    for path in extents_in(directory):
        damage(path)
    assert reads_corrupt(disk, 0, ours[0])
    assert reads_corrupt(disk, 1, theirs[0])
    (directory / "set-aside" / "00000007.corrupt").write_bytes(b"whose?")
    disk = reopened(disk, directory)
    assert disk.namespaces() == {UID, OTHER_UID}
    assert disk.erase_namespace(UID) == 2  # its own, and the one that may be its own
    assert disk.namespaces() == {OTHER_UID}
    assert len(files_in(directory)) == 1


def test_releasing_or_erasing_what_is_empty_does_nothing(directory: Path) -> None:
    disk = filled(directory, chain(1))
    disk.release([0])
    disk.release([0])
    assert disk.erase([0]) == 1
    assert files_in(directory) == []


def test_nothing_works_once_it_is_closed(directory: Path) -> None:
    facts = chain(1)
    disk = filled(directory, facts)
    disk.close()
    disk.close()
    for call in (
        lambda: disk.read(0, facts[0]),
        lambda: disk.write(1, facts[0], body_of(facts[0])),
        lambda: disk.erase([0]),
        lambda: disk.release([0]),
        lambda: disk.discard(UID),
        lambda: disk.erase_namespace(UID),
    ):
        with pytest.raises(Retryable):
            call()
    assert len(extents_in(directory)) == 1


# -- the directory -----------------------------------------------------------------------------------------------------


def test_the_directory_is_its_owners_alone(directory: Path) -> None:
    directory.mkdir(mode=0o755)
    filled(directory, chain(1))
    for path in (directory, *directory.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)


def test_two_daemons_never_share_a_directory(directory: Path) -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2] / 'support')!r})\n"
        "from pathlib import Path\nfrom disk_rig import open_disk\n"
        f"open_disk(Path({str(directory)!r})); print('open', flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"open\n"
        with pytest.raises(DirectoryBusy, match="another process has locked it; give each daemon"):
            open_disk(directory)
        other.kill()
    open_disk(directory).close()


def test_a_directory_that_cannot_be_used_is_named_with_a_cure(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(DirectoryUnusable, match=r"file/disk: ENOTDIR .*; name a directory"):
        open_disk(file / "disk")
    link = tmp_path / "disk" / "lock"
    link.parent.mkdir()
    link.symlink_to(file)
    with pytest.raises(DirectoryUnusable, match="ELOOP"):
        open_disk(link.parent)


def test_bad_files_are_counted_by_cause_and_set_aside(directory: Path) -> None:
    disk = filled(directory, chain(5))
    disk.close()
    truncated, longer, newer, flipped, whole = extents_in(directory)
    truncated.write_bytes(truncated.read_bytes()[:-1])
    longer.write_bytes(longer.read_bytes() + b"x")
    newer.write_bytes(newer.read_bytes()[:8] + b"\x02\0\0\0" + newer.read_bytes()[12:])
    flipped.write_bytes(flipped.read_bytes()[:20] + b"\xff" + flipped.read_bytes()[21:])
    (directory / "core.1234").write_bytes(b"not ours")
    (directory / f"{'0' * 32}.extent").write_bytes(b"")
    (directory / f"{'1' * 32}.extent").write_bytes(whole.read_bytes())  # a copy under another name
    (directory / f"{'2' * 32}.draft").write_bytes(b"never ended")
    (directory / f"{'3' * 32}.extent").write_bytes(bytes(FILE_BYTES))
    (directory / "lost+found").mkdir()
    (directory / "pipe").symlink_to(directory / "lock")
    disk = reopened(disk, directory)
    assert disk.state().files == {
        Cause.TRUNCATED: 2,
        Cause.NEWER: 1,
        Cause.CORRUPT: 2,
        Cause.FOREIGN: 4,  # the directory and the link are left where they are
        Cause.UNFINISHED: 1,
        Cause.HALF_ERASED: 1,
    }
    assert extents_in(directory) == [whole]
    assert {path.name for path in directory.iterdir()} == {whole.name, "lock", "set-aside", "lost+found", "pipe"}
    assert disk.state().set_aside == len(list((directory / "set-aside").iterdir())) == 7


def test_i11_only_the_latest_bad_files_are_kept(directory: Path) -> None:
    disk = open_disk(directory)
    for start in range(3):
        disk.close()
        for number in range(10):
            (directory / f"junk-{start}-{number}").write_bytes(b"%d" % start)
        disk = open_disk(directory)
    kept = sorted((directory / "set-aside").iterdir())
    assert len(kept) == disk.state().set_aside == 16
    assert [path.read_bytes() for path in kept] == [b"1"] * 6 + [b"2"] * 10
    assert disk.state().files == {Cause.FOREIGN: 10}
    assert disk.state().set_aside_removed == 10
