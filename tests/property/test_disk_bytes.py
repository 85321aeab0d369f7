"""Whatever happens to a file of the disk tier, it gives the right bytes or none."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from disk_rig import (
    FILE_BYTES,
    NEXT_SECRET,
    ROOT,
    SECRET,
    UID,
    body_of,
    chain,
    extents_in,
    open_disk,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from kvgrove_daemon.cache.tiers.disk.causes import BadExtent
from kvgrove_daemon.cache.tiers.disk.extent import KEY_PAGES, PAGE, Header, parse
from kvgrove_daemon.cache.tiers.disk.medium import DiskMedium
from kvgrove_daemon.cache.tiers.medium import MediumCorrupt

[FACTS] = chain(1)
BODY = body_of(FACTS)
SPARE = range(KEY_PAGES[1], KEY_PAGES[1] + PAGE)
"""The key page that is not in use: what a torn rewrap left there harms nothing."""


@pytest.fixture(scope="module")
def whole() -> bytes:
    """The file of one block."""
    with tempfile.TemporaryDirectory() as folder:
        disk = open_disk(Path(folder))
        disk.set_secret(UID, SECRET)
        disk.write(0, FACTS, BODY)
        [path] = extents_in(Path(folder))
        return path.read_bytes()


class Bench:
    """A medium that holds one block, whose file is replaced before each reading."""

    def __init__(self, folder: Path, whole: bytes) -> None:
        self.folder = folder
        self.whole = whole
        self.name = f"{parse(whole[:PAGE]).extent.hex()}.extent"

    def opened(self, found: bytes) -> DiskMedium:
        for path in self.folder.rglob("*"):
            if path.is_file():
                path.unlink()
        (self.folder / self.name).write_bytes(found)
        disk = open_disk(self.folder, slots=1)
        disk.set_secret(UID, SECRET)
        return disk

    def data_after_a_start(self, found: bytes) -> bytes | None:
        """What the block's body is for a node that starts over this file; None: none, and it was counted."""
        disk = self.opened(found)
        try:
            for survivor in disk.survey(UID, {ROOT}):
                assert survivor.facts == FACTS
                assert disk.adopt(0, survivor)
                return disk.read(0, FACTS)
        except MediumCorrupt:
            pass
        finally:
            state = disk.state()
            disk.close()
        assert sum(state.files.values()) == 1
        return None

    def data_while_running(self, found: bytes) -> bytes | None:
        """The same for a node under whose hands the file changes; None: none, and it was counted."""
        disk = self.opened(self.whole)
        [survivor] = disk.survey(UID, {ROOT})
        assert disk.adopt(0, survivor)
        (self.folder / self.name).write_bytes(found)
        try:
            return disk.read(0, FACTS)
        except MediumCorrupt:
            assert sum(disk.state().files.values()) == disk.state().set_aside == 1
            return None
        finally:
            disk.close()


@pytest.fixture(scope="module")
def bench(whole: bytes) -> Iterator[Bench]:
    with tempfile.TemporaryDirectory() as folder:
        yield Bench(Path(folder), whole)


def test_the_whole_file_gives_its_data(bench: Bench) -> None:
    assert bench.data_after_a_start(bench.whole) == bench.data_while_running(bench.whole) == BODY


@given(at=st.integers(0, FILE_BYTES - 1), flip=st.integers(1, 255))
@settings(max_examples=300, deadline=None)
def test_no_changed_byte_goes_unnoticed(bench: Bench, at: int, flip: int) -> None:
    found = bytearray(bench.whole)
    found[at] ^= flip
    for data in (bench.data_after_a_start(bytes(found)), bench.data_while_running(bytes(found))):
        assert data == (BODY if at in SPARE else None)


@given(length=st.integers(0, FILE_BYTES - 1))
@settings(max_examples=60, deadline=None)
def test_no_truncated_file_gives_data(bench: Bench, length: int) -> None:
    assert bench.data_after_a_start(bench.whole[:length]) is None
    assert bench.data_while_running(bench.whole[:length]) is None


@given(
    low=st.integers(0, FILE_BYTES - 1),
    high=st.integers(0, FILE_BYTES - 1),
    length=st.integers(1, 2 * PAGE),
)
@settings(max_examples=100, deadline=None)
def test_a_part_copied_over_another_gives_the_same_data_or_none(bench: Bench, low: int, high: int, length: int) -> None:
    found = bytearray(bench.whole)
    length = min(length, FILE_BYTES - low, FILE_BYTES - high)
    found[high : high + length] = bench.whole[low : low + length]
    assert bench.data_after_a_start(bytes(found)) in (None, BODY)
    assert bench.data_while_running(bytes(found)) in (None, BODY)


@given(found=st.binary(max_size=2 * PAGE))
@settings(max_examples=60, deadline=None)
def test_no_foreign_file_gives_data(bench: Bench, found: bytes) -> None:
    assert bench.data_after_a_start(found) is None


@given(magic=st.sampled_from([b"kvgrove\0", b"kvgrove\0\1\0\0\0", b""]), rest=st.binary(max_size=300), end=st.binary())
def test_a_header_that_is_none_is_refused_with_a_cause(magic: bytes, rest: bytes, end: bytes) -> None:
    for page in (magic + rest, (magic + rest).ljust(PAGE - len(end), b"\0") + end):
        with pytest.raises(BadExtent):
            parse(page)


@given(
    uid=st.text(st.characters(exclude_categories=["Cs"]), max_size=200),
    depth=st.integers(0, 2**32 - 1),
    body=st.integers(0, 2**48),
    facts=st.integers(1, 1000),
)
def test_a_header_says_what_was_written_into_it(uid: str, depth: int, body: int, facts: int) -> None:
    header = Header(b"i" * 16, b"l" * 32, uid, depth, facts * PAGE, body)
    assert parse(header.encode()) == header


@given(at=st.integers(0, PAGE - 1), flip=st.integers(1, 255), which=st.sampled_from(KEY_PAGES))
@settings(max_examples=60, deadline=None)
def test_a_torn_key_page_costs_nothing_while_the_other_one_is_whole(
    bench: Bench, at: int, flip: int, which: int
) -> None:
    """As a crash in the middle of a rewrap leaves it: one page wraps for the old secret, one for the new."""
    disk = bench.opened(bench.whole)
    [survivor] = disk.survey(UID, {ROOT})
    disk.adopt(0, survivor)
    disk.rewrap(UID, SECRET, NEXT_SECRET)
    found = bytearray((bench.folder / bench.name).read_bytes())
    disk.close()
    found[KEY_PAGES[0] : KEY_PAGES[0] + PAGE] = bench.whole[KEY_PAGES[0] : KEY_PAGES[0] + PAGE]
    found[which + at] ^= flip
    disk = bench.opened(bytes(found))
    disk.set_secret(UID, NEXT_SECRET, SECRET)
    [survivor] = disk.survey(UID, {ROOT})
    disk.adopt(0, survivor)
    assert disk.read(0, FACTS) == BODY
    disk.close()
