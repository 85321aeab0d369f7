"""The command line as people meet it: words, one-line errors, exit codes."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import msgspec
import pytest
from receipt_rig import KEY, receipt

from kvgrove_cli import console, status
from kvgrove_cli.__main__ import kvgrove
from kvgrove_cli.commands.up import curl_line
from kvgrove_cli.state_dir import StateDir
from kvgrove_cli.status import (
    ErasureStatus,
    FleetStatus,
    InvalidationStatus,
    MemberStatus,
    NamespaceStatus,
    Problem,
)
from kvgrove_protocol.receipts import SignedReceipt

STATUS = FleetStatus(
    pid=7,
    revision="1.2",
    ready=False,
    namespaces=[
        NamespaceStatus(
            name="shop/assistant",
            uid="u1",
            phase="Ready",
            model="tiny",
            generation="0123456789ab",
            prefixes=["support"],
            fence=(1, 2, 1),
            warm_ready=9,
            warm_wanted=18,
            invalidation=InvalidationStatus(confirmed=2, expired=1, gone=0, pending=1),
            invalidation_complete=False,
            message="",
            erasures=[
                ErasureStatus(
                    name="request-1",
                    id="e1",
                    state="UnderWay",
                    confirmed=1,
                    pending=1,
                    gone=0,
                    places={"host": 12},
                    faults=["node-1: not_empty"],
                    receipts=[SignedReceipt(receipt=receipt("u1", "e1"), public_key=KEY.public)],
                )
            ],
        )
    ],
    models=[],
    members=[
        MemberStatus(
            name="node-0",
            role="daemon",
            state="waiting",
            connected=False,
            address="",
            boot="",
            applied="0.0",
            pid=None,
            restarts=1,
            message="out of memory",
        )
    ],
    problems=[Problem(object="member node-0", reason="ProcessWaiting", message="out of memory")],
)


def run(*arguments: str) -> int:
    return console.run(lambda: kvgrove.main(list(arguments), prog_name="kvgrove", standalone_mode=False))


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["nothing"], 2, "No such command"),
        (["up"], 2, "--manifests"),
        (["up", "--manifests", "/nowhere"], 2, "no such file or directory"),
        (["up", "--manifests", "/nowhere", "--listen", "8080"], 2, "--listen 8080: expected HOST:PORT"),
        (["up", "--manifests", "/nowhere", "--nodes", "0"], 2, "--nodes: at least 1"),
        (["up", "--manifests", "/nowhere", "--listen", "127.0.0.1:65535", "--gateways", "2"], 2, "2 ports"),
        (["validate", "/nowhere"], 2, "no such file or directory"),
        (["keys", "list", "--file", "/nowhere/keys.yaml"], 2, "no such file"),
        (["status", "--state-dir", "/nowhere"], 1, "no fleet has run here"),
    ],
)
def test_an_error_is_one_line_on_stderr(
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, words: str
) -> None:
    assert run(*arguments) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("kvgrove: ")
    assert words in captured.err


def test_every_problem_of_a_manifest_has_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.yaml").write_text("kind: Nothing\n")
    (tmp_path / "b.yaml").write_text("kind: [\n")
    assert run("validate", str(tmp_path)) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[1].strip() for line in lines] == [str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml")]


def test_validate_counts_what_is_sound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.yaml").write_text(
        "apiVersion: kvgrove.dev/v1alpha1\nkind: ModelVersion\nmetadata: {name: m}\n"
        "spec: {source: {hostPath: {path: /m}}}\n"
    )
    assert run("validate", str(tmp_path)) == 0
    assert "sound (1 ModelVersion, 0 PromptCacheNamespace)" in capsys.readouterr().out


def test_keys_are_created_listed_and_revoked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = ["--file", str(tmp_path / "keys.yaml")]
    assert (
        run("keys", "create", "app", "--tenant", "acme", "--scope", "hr", "--namespace", "shop/assistant", *file) == 0
    )
    secret = capsys.readouterr().out.strip()
    assert run("keys", "list", "-o", "json", *file) == 0
    listed = capsys.readouterr().out
    assert json.loads(listed) == [
        {
            "id": "app",
            "tenant": "acme",
            "user": None,
            "scopes": ["hr"],
            "namespaces": ["shop/assistant"],
            "explain": False,
            "operator": False,
            "monitor": False,
            "expires": None,
        }
    ]
    assert secret not in listed
    assert run("keys", "revoke", "app", *file) == 0
    capsys.readouterr()
    assert run("keys", "list", *file) == 0
    assert capsys.readouterr().out.splitlines() == ["ID  TENANT  USER  SCOPES  NAMESPACES  ROLES  EXPIRES"]


def test_the_status_of_a_running_fleet_is_shown_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with StateDir(tmp_path) as state_dir:
        status.write(state_dir.status_file, STATUS)
        assert run("status", "--state-dir", str(tmp_path)) == 0
        text = capsys.readouterr().out
        assert run("status", "--state-dir", str(tmp_path), "-o", "json") == 0
        assert msgspec.json.decode(capsys.readouterr().out, type=FleetStatus) == STATUS
    for words in ("not ready", "9/18", "1/2/1", "open (2 confirmed, 1 expired, 1 pending)", "out of memory"):
        assert words in text


def test_i8_the_table_shows_how_far_an_erasure_is() -> None:
    _, _, row = status.as_table(STATUS).partition("ERASURE")
    for words in ("request-1", "shop/assistant", "UnderWay", "1 confirmed, 1 pending", "host 12", "node-1: not_empty"):
        assert words in row


def test_the_status_of_a_fleet_that_ended_is_not_passed_off_as_its_state(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with StateDir(tmp_path) as state_dir:
        status.write(state_dir.status_file, STATUS)
    assert run("status", "--state-dir", str(tmp_path)) == 1
    assert "no fleet is running" in capsys.readouterr().err


def test_version_names_the_protocol(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("version") == 0
    assert "(protocol 1)" in capsys.readouterr().out


def test_the_line_to_try_is_safe_for_a_shell() -> None:
    line = curl_line("http://h/v1", "$KEY", "shop/a", "it's", 'say "hi"')
    arguments = shlex.split(line)
    assert json.loads(arguments[-1]) == {
        "model": "shop/a",
        "max_tokens": 32,
        "messages": [{"role": "user", "content": 'say "hi"'}],
        "kvgrove": {"prefix": "it's"},
    }
    assert "Authorization: Bearer $KEY" in arguments
