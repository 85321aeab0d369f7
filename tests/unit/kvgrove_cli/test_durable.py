"""A durable file comes back as it was written, or says that it does not: never something in between."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import msgspec
import pytest

from kvgrove_cli.durable import DurableFile, Unwritable, write_atomically
from kvgrove_cli.errors import FleetProblem


class Facts(msgspec.Struct, frozen=True):
    counter: int
    nonce: bytes


def durable(path: Path, *, version: int = 1) -> DurableFile[Facts]:
    return DurableFile(path, Facts, name="facts", version=version, cure="move it away")


def test_what_was_saved_comes_back(tmp_path: Path) -> None:
    file = durable(tmp_path / "facts")
    assert file.load() is None
    file.save(Facts(7, b"\x00\xff"))
    assert durable(tmp_path / "facts").load() == Facts(7, b"\x00\xff")
    assert stat.S_IMODE((tmp_path / "facts").stat().st_mode) == 0o600


def test_every_single_changed_byte_is_noticed(tmp_path: Path) -> None:
    file = durable(tmp_path / "facts")
    file.save(Facts(7, b"nonce"))
    intact = file.path.read_bytes()
    for position in range(len(intact)):
        changed = bytearray(intact)
        changed[position] ^= 0x01
        file.path.write_bytes(changed)
        with pytest.raises(FleetProblem) as caught:
            file.load()
        assert str(file.path) in caught.value.message
        assert "\n" not in caught.value.message


@pytest.mark.parametrize("keep", [0, 1, 40, -1])
def test_a_cut_file_is_an_error_and_stays_as_it_is(tmp_path: Path, keep: int) -> None:
    file = durable(tmp_path / "facts")
    file.save(Facts(7, b"nonce"))
    file.path.write_bytes(file.path.read_bytes()[:keep])
    before = file.path.read_bytes()
    with pytest.raises(FleetProblem, match="move it away") as caught:
        file.load()
    assert caught.value.code == "state_damaged"
    assert file.path.read_bytes() == before


def test_another_version_names_both(tmp_path: Path) -> None:
    durable(tmp_path / "facts", version=2).save(Facts(1, b""))
    with pytest.raises(FleetProblem, match="format version 2, this kvgrove reads 1"):
        durable(tmp_path / "facts").load()


def test_a_failed_write_leaves_the_old_content_and_no_litter(tmp_path: Path) -> None:
    path = tmp_path / "facts"
    write_atomically(path, b"old")
    with pytest.raises(TypeError):
        write_atomically(path, "text")  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_place_that_takes_no_writes_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(Unwritable, match="gone/facts cannot be written: No such file"):
        write_atomically(tmp_path / "gone" / "facts", b"new")


def test_the_content_is_readable_by_people(tmp_path: Path) -> None:
    file = durable(tmp_path / "facts")
    file.save(Facts(7, b"n"))
    header, body = file.path.read_text().split("\n", 1)
    assert json.loads(header)["format"] == "facts"
    assert json.loads(body)["counter"] == 7
