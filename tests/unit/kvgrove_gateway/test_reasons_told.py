"""Who is told why tokens were computed: the gateway's setting, and what a request may ask for (I10)."""

from __future__ import annotations

import pytest

from kvgrove_gateway.account import Account
from kvgrove_gateway.reasons import HEADER, Telling
from kvgrove_gateway.settings import parse
from kvgrove_protocol.data import Usage
from kvgrove_protocol.reasons import MissReason

USAGE = Usage(prompt=100, reused=64, completion=3, missed={MissReason.PARTIAL_BLOCK: 4, MissReason.EVICTED: 32})


@pytest.mark.parametrize(
    ("telling", "unsaid", "wanted", "unwanted"),
    [
        (Telling.ALWAYS, True, True, False),
        (Telling.ASKED, False, True, False),
        (Telling.NEVER, False, False, False),
    ],
)
def test_a_request_may_ask_or_do_without_within_the_setting(
    telling: Telling, unsaid: bool, wanted: bool, unwanted: bool
) -> None:
    assert (telling.tells(None), telling.tells(True), telling.tells(False)) == (unsaid, wanted, unwanted)


def test_header_and_extension_say_the_same_and_add_up() -> None:
    account = Account(USAGE, "node-0", "host", 0.1)
    (value,) = account.headers().values()
    assert value == "reused=64; evicted=32; partial_block=4"
    counts = {name: int(count) for name, count in (part.split("=") for part in value.split("; "))}
    assert sum(counts.values()) == USAGE.prompt
    assert account.extension()["missed"] == {"evicted": 32, "partial_block": 4}


def test_switched_off_there_is_neither_and_the_usage_stays() -> None:
    account = Account(USAGE, "node-0", "host", 0.1, reasons=False)
    assert HEADER not in account.headers()
    assert "missed" not in account.extension()
    assert account.extension()["reused_tokens"] == 64


def test_the_setting_is_a_closed_list(capsys: pytest.CaptureFixture[str]) -> None:
    needed = ["--member", "g", "--control", "tcp://127.0.0.1:1", "--keys", "k", "--plain-links"]
    assert parse(needed).reasons is Telling.ALWAYS
    assert parse([*needed, "--reasons", "never"]).reasons is Telling.NEVER
    with pytest.raises(SystemExit):
        parse([*needed, "--reasons", "sometimes"])
    assert "--reasons" in capsys.readouterr().err
