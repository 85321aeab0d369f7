"""A full disk and a broken one: at whichever call it shows, nothing is half done and the medium heals."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from disk_rig import (
    NEXT_SECRET,
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
from watched_filesystem import Countdown, WatchedFilesystem

from kvgrove_daemon.cache.tiers.disk import (
    Cause,
    DirectoryUnusable,
    DiskMedium,
    EraseIncomplete,
    Filesystem,
    RewrapIncomplete,
)
from kvgrove_daemon.cache.tiers.medium import MediumCorrupt, MediumFailed, MediumFull

FACTS = chain(3)
ERRORS = [
    (errno.ENOSPC, MediumFull),
    (errno.EDQUOT, MediumFull),
    (errno.EIO, MediumFailed),
    (errno.EROFS, MediumFailed),
]


def error(number: int) -> Callable[[], None]:
    def fail() -> None:
        raise OSError(number, os.strerror(number))

    return fail


class Moody(WatchedFilesystem):
    """Works until `fail_at` is called: then the so many-th call from there fails, once."""

    def __init__(self) -> None:
        super().__init__(lambda _what: None)

    def fail_at(self, stop: int, number: int) -> Countdown:
        countdown = Countdown(stop, error(number))
        self.at = countdown
        return countdown

    def heal(self) -> None:
        self.at = lambda _what: None


def every_place(
    tmp_path: Path, number: int, act: Callable[[DiskMedium], None]
) -> Iterator[tuple[DiskMedium, Moody, Path, Exception]]:
    """A medium with `FACTS` in slots 0 to 2, for each call within ``act`` that can fail: after it did."""
    for stop in range(1000):
        directory = tmp_path / f"{number}-{stop}"
        moody = Moody()
        disk = open_disk(directory, filesystem=moody)
        disk.set_secret(UID, SECRET)
        disk.write_many([(slot, facts, body_of(facts)) for slot, facts in enumerate(FACTS)])
        countdown = moody.fail_at(stop, number)
        try:
            act(disk)
        except (MediumFull, MediumFailed) as caught:
            moody.heal()
            yield disk, moody, directory, caught
        if countdown.calls <= stop:
            assert stop > 2, "the operation makes hardly any calls: nothing was tried"
            return
        disk.close()
    raise AssertionError("a thousand calls and no end")


@pytest.mark.parametrize(("number", "kind"), ERRORS)
def test_a_write_that_finds_no_room_or_a_broken_disk_leaves_nothing_and_heals(
    tmp_path: Path, number: int, kind: type[Exception]
) -> None:
    new = chain(2, seed=4)

    def write(disk: DiskMedium) -> None:
        disk.write_many([(8 + at, facts, body_of(facts)) for at, facts in enumerate(new)])

    for disk, _, directory, caught in every_place(tmp_path, number, write):
        assert type(caught) is kind
        assert disk.state().reason == caught.code
        assert len(files_in(directory)) == len(FACTS) == disk.state().held
        with pytest.raises(MediumFailed, match="empty"):
            disk.read(8, new[0])
        assert disk.read(0, FACTS[0]) == body_of(FACTS[0])
        write(disk)
        assert disk.state().reason == ""
        assert disk.read(9, new[1]) == body_of(new[1])


def refusing(number: int, *whats: str) -> Callable[[str], None]:
    def at(what: str) -> None:
        if what in whats:
            raise OSError(number, os.strerror(number))

    return at


def test_writes_that_fail_and_cannot_be_undone_do_not_fill_the_disk_and_are_removed_when_it_heals(
    tmp_path: Path,
) -> None:
    broken = WatchedFilesystem(refusing(errno.EIO, "sync", "unlink"))
    disk = open_disk(tmp_path, filesystem=broken)
    disk.set_secret(UID, SECRET)
    for _ in range(5):
        with pytest.raises(MediumFailed):
            disk.write(0, FACTS[0], body_of(FACTS[0]))
        assert len(files_in(tmp_path)) == 1
    broken.at = lambda _what: None
    assert disk.erase([0]) == 1  # as the tier does with each slot that nothing came of
    assert files_in(tmp_path) == []

    broken.at = refusing(errno.EIO, "sync", "unlink")
    with pytest.raises(MediumFailed):
        disk.write(0, FACTS[0], body_of(FACTS[0]))
    broken.at = lambda _what: None
    disk.write(0, FACTS[0], body_of(FACTS[0]))
    assert len(files_in(tmp_path)) == 1
    assert disk.read(0, FACTS[0]) == body_of(FACTS[0])


def test_a_full_disk_says_so_until_there_is_room_again(tmp_path: Path) -> None:
    moody = Moody()
    disk = open_disk(tmp_path, filesystem=moody)
    disk.set_secret(UID, SECRET)
    for _ in range(3):
        moody.fail_at(2, errno.ENOSPC)
        with pytest.raises(MediumFull, match="free some space"):
            disk.write(0, FACTS[0], body_of(FACTS[0]))
        assert disk.state().reason == "tier_full"
        assert files_in(tmp_path) == []
    moody.heal()
    disk.write(0, FACTS[0], body_of(FACTS[0]))
    assert disk.state().reason == ""


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_an_erase_that_fails_says_which_slots_and_never_answers_for_them(tmp_path: Path, number: int) -> None:
    for disk, _, directory, caught in every_place(tmp_path, number, lambda disk: disk.erase([0, 1, 2]) and None):
        assert isinstance(caught, EraseIncomplete)
        assert caught.remaining == len(caught.slots) == disk.state().to_erase > 0
        assert caught.erased + caught.remaining == 3
        for slot, facts in enumerate(FACTS):
            with pytest.raises(MediumFailed):
                disk.read(slot, facts)
        with pytest.raises(ValueError, match="in use"):
            disk.write(caught.slots[0], FACTS[0], body_of(FACTS[0]))
        assert disk.erase([0, 1, 2]) == 3
        assert disk.state().held == 0
        assert files_in(directory) == []


def test_an_erase_of_a_namespace_that_fails_goes_on_where_it_was(tmp_path: Path) -> None:
    for disk, _, directory, caught in every_place(tmp_path, errno.EIO, lambda disk: disk.erase_namespace(UID) and None):
        assert isinstance(caught, EraseIncomplete)
        assert disk.namespaces() == {UID}
        assert disk.erase_namespace(UID) == caught.remaining
        assert disk.namespaces() == set()
        assert files_in(directory) == []


def test_zeros_that_do_not_stay_are_no_erase(tmp_path: Path) -> None:
    class Stubborn(Filesystem):
        obeys = False

        def write_at(self, descriptor: int, offset: int, parts: object) -> None:
            if self.obeys or parts[0][:8] == b"kvgrove\0":  # type: ignore[index]
                super().write_at(descriptor, offset, parts)  # type: ignore[arg-type]

    stubborn = Stubborn()
    disk = open_disk(tmp_path, filesystem=stubborn)
    disk.set_secret(UID, SECRET)
    disk.write(0, FACTS[0], body_of(FACTS[0]))
    with pytest.raises(EraseIncomplete, match="not what was written over it"):
        disk.erase([0])
    stubborn.obeys = True
    assert disk.erase([0]) == 1


def test_a_release_that_fails_leaves_the_slot_to_be_erased(tmp_path: Path) -> None:
    moody = Moody()
    disk = open_disk(tmp_path, filesystem=moody)
    disk.set_secret(UID, SECRET)
    disk.write(0, FACTS[0], body_of(FACTS[0]))
    moody.fail_at(0, errno.EIO)
    with pytest.raises(MediumFailed, match="EIO"):
        disk.release([0])
    moody.heal()
    assert disk.state().to_erase == 1
    assert disk.erase([0]) == 1
    assert files_in(tmp_path) == []


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_rewrap_that_fails_can_be_called_again_and_loses_nothing(tmp_path: Path, number: int) -> None:
    def rewrap(disk: DiskMedium) -> None:
        disk.rewrap(UID, SECRET, NEXT_SECRET)

    for disk, _, directory, caught in every_place(tmp_path, number, rewrap):
        assert isinstance(caught, RewrapIncomplete)
        assert caught.remaining == 1
        for slot, facts in enumerate(FACTS):
            assert disk.read(slot, facts) == body_of(facts)
        counts = disk.rewrap(UID, SECRET, NEXT_SECRET)
        assert (counts.done + counts.already, counts.lost) == (3, 0)
        disk.close()
        again = open_disk(directory)
        again.set_secret(UID, NEXT_SECRET)
        assert list(adopt_all(again).values()) == FACTS
        again.close()


def test_a_file_that_cannot_be_read_is_set_aside_and_its_slot_is_empty(tmp_path: Path) -> None:
    class Unreadable(Filesystem):
        broken = False

        def read_at(self, descriptor: int, offset: int, length: int) -> bytes:
            if self.broken:
                raise OSError(errno.EIO, "bad sector")
            return super().read_at(descriptor, offset, length)

        def read_into(self, descriptor: int, buffer: memoryview) -> int:
            if self.broken:
                raise OSError(errno.EIO, "bad sector")
            return super().read_into(descriptor, buffer)

    system = Unreadable()
    disk = open_disk(tmp_path, filesystem=system)
    disk.set_secret(UID, SECRET)
    disk.write_many([(slot, facts, body_of(facts)) for slot, facts in enumerate(FACTS)])
    system.broken = True
    with pytest.raises(MediumFailed, match="EIO"):
        disk.read(0, FACTS[0])
    system.broken = False
    with pytest.raises(MediumFailed, match="empty"):
        disk.read(0, FACTS[0])
    disk.write(0, FACTS[0], body_of(FACTS[0]))
    assert disk.state().files == {Cause.UNREADABLE: 1}
    assert (disk.state().set_aside, len(extents_in(tmp_path))) == (1, 3)
    disk.close()
    system.broken = True
    again = open_disk(tmp_path, filesystem=system)
    assert again.state().files == {Cause.UNREADABLE: 3}
    assert extents_in(tmp_path) == []


def test_what_cannot_be_set_aside_is_removed(tmp_path: Path) -> None:
    moody = Moody()
    disk = open_disk(tmp_path, filesystem=moody)
    disk.set_secret(UID, SECRET)
    disk.write(0, FACTS[0], body_of(FACTS[0]))
    [path] = extents_in(tmp_path)
    damage(path)
    moody.fail_at(0, errno.ENOSPC)
    with pytest.raises(MediumCorrupt):
        disk.read(0, FACTS[0])
    assert files_in(tmp_path) == []
    assert disk.state().set_aside_removed == 1


def test_a_directory_that_fails_at_the_start_is_let_go_of_and_named(tmp_path: Path) -> None:
    moody = Moody()
    moody.fail_at(2, errno.EIO)  # after both folders: the first fsync
    with pytest.raises(DirectoryUnusable, match="EIO"):
        open_disk(tmp_path, filesystem=moody)
    moody.heal()
    disk = open_disk(tmp_path, filesystem=moody)
    disk.set_secret(UID, SECRET)
    assert disk.survey(UID, {ROOT}) == []
