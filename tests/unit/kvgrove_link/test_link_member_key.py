"""The key of a member's receipts: made once, kept for its owner only, and the only one that can sign for it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from msgspec.structs import replace

from kvgrove_link.member_key import MemberKey, MemberKeyDamaged
from kvgrove_operator.verification import genuine
from kvgrove_protocol.control import DAEMON, Hello
from kvgrove_protocol.receipts import EraseOutcome, Receipt

RECEIPT = Receipt(uid="u1", member="node-0", boot="a", outcome=EraseOutcome.PROVEN)


def hello(key: MemberKey) -> Hello:
    return Hello(member="node-0", role=DAEMON, boot="a", public_key=key.public)


def test_i8_a_key_is_made_at_the_first_start_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "state" / "receipts.key"
    first = MemberKey.load_or_make(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = MemberKey.load_or_make(path)
    assert again.public == first.public
    assert genuine(again.sign(RECEIPT), hello(first))
    assert [file.name for file in path.parent.iterdir()] == ["receipts.key"]


def test_a_start_that_died_while_making_the_key_is_made_good(tmp_path: Path) -> None:
    (tmp_path / "receipts.new").write_bytes(b"half")
    assert len(MemberKey.load_or_make(tmp_path / "receipts.key").public) == 32


def test_a_file_that_is_no_key_is_refused_with_the_cure(tmp_path: Path) -> None:
    path = tmp_path / "receipts.key"
    path.write_bytes(b"not a key")
    with pytest.raises(MemberKeyDamaged, match="9 bytes, a key has 32; move it away"):
        MemberKey.load_or_make(path)


def test_i8_only_the_member_itself_can_sign_for_its_boot() -> None:
    key, other = MemberKey.fresh(), MemberKey.fresh()
    signed = key.sign(RECEIPT)
    assert genuine(signed, hello(key))
    assert not genuine(signed, hello(other))
    assert not genuine(replace(signed, uid="u2"), hello(key))
    assert not genuine(signed, replace(hello(key), boot="b"))
    assert not genuine(signed, replace(hello(key), member="node-1"))
    assert not genuine(signed, replace(hello(key), public_key=b""))
    assert not genuine(replace(signed, signature=b""), hello(key))


def test_i12_a_key_does_not_show_when_it_is_printed(tmp_path: Path) -> None:
    path = tmp_path / "receipts.key"
    key = MemberKey.load_or_make(path)
    assert path.read_bytes().hex() not in repr(key)
    assert repr(path.read_bytes()) not in repr(vars(key))
