"""One fleet at a time, and nothing it must remember is lost or silently replaced."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from kvgrove_cli.errors import FleetProblem
from kvgrove_cli.state_dir import FleetState, StateDir, default_path
from kvgrove_operator.member_events import MemberRecord
from kvgrove_operator.plan_state import NamespaceState, PlanState
from kvgrove_protocol.identity import Purge

RECORD = MemberRecord(uid="u1", member="node-0", boot="b1", role="daemon", seconds=30.0)
NAMESPACE = NamespaceState(
    name="shop/assistant",
    purge=Purge(counter=3, nonce=b"\x00" * 16),
    purge_epoch=1,
    policy_version=0,
    document_revision=7,
    access_revision=2,
    access=b"\xff" * 32,
    secret=b"\x01" * 32,
)
STATE = FleetState(
    term=4, uids={"shop/assistant": "u1"}, plan=PlanState(namespaces={"u1": NAMESPACE}), members={"node-0": [RECORD]}
)


def test_facts_come_back_after_a_restart(tmp_path: Path) -> None:
    with StateDir(tmp_path / "state") as state_dir:
        assert state_dir.load() == FleetState()
        state_dir.save(STATE)
    with StateDir(tmp_path / "state") as state_dir:
        assert state_dir.load() == STATE


def test_secrets_are_for_their_owner_only(tmp_path: Path) -> None:
    with StateDir(tmp_path / "state") as state_dir:
        state_dir.save(STATE)
        state_dir.member_dir("node-0")
        for path in (state_dir.path, *state_dir.path.rglob("*")):
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def test_a_second_supervisor_is_told_who_is_there(tmp_path: Path) -> None:
    with StateDir(tmp_path), pytest.raises(FleetProblem, match=f"in use by process {os.getpid()}:") as caught:
        StateDir(tmp_path).__enter__()
    assert caught.value.code == "state_in_use"
    with StateDir(tmp_path):
        pass


def test_the_lock_of_a_killed_supervisor_is_free(tmp_path: Path) -> None:
    program = (
        "import sys, time, pathlib\n"
        "from kvgrove_cli.state_dir import StateDir\n"
        f"with StateDir(pathlib.Path({str(tmp_path)!r})):\n"
        "    print('held', flush=True)\n"
        "    time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(FleetProblem, match=f"process {process.pid}:"):
            StateDir(tmp_path).__enter__()
        process.kill()
    with StateDir(tmp_path):
        pass


def test_nothing_is_saved_without_the_lock(tmp_path: Path) -> None:
    with pytest.raises(FleetProblem, match="lock is not held"):
        StateDir(tmp_path).save(STATE)


def test_a_damaged_state_says_what_to_do_and_stays(tmp_path: Path) -> None:
    with StateDir(tmp_path) as state_dir:
        state_dir.save(STATE)
        path = tmp_path / "state.json"
        path.write_bytes(path.read_bytes().replace(b'"document_revision":7', b'"document_revision":6'))
        before = path.read_bytes()
        with pytest.raises(FleetProblem, match="move it away to start afresh") as caught:
            state_dir.load()
        assert caught.value.code == "state_damaged"
        assert path.read_bytes() == before


def test_a_state_of_other_types_is_damaged(tmp_path: Path) -> None:
    with StateDir(tmp_path) as state_dir:
        state_dir.save(msgspec.structs.replace(STATE, term="four"))  # type: ignore[arg-type]
        with pytest.raises(FleetProblem, match="is damaged"):
            state_dir.load()


def test_a_place_that_cannot_be_had_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FleetProblem, match="choose another --state-dir"):
        StateDir(tmp_path / "file" / "state").__enter__()


def test_a_disk_without_room_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to("/dev/full")
    with pytest.raises(FleetProblem, match="make room"):
        StateDir(tmp_path).__enter__()


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"XDG_STATE_HOME": "/x", "HOME": "/home/a"}, "/x/kvgrove/default"),
        ({"HOME": "/home/a"}, "/home/a/.local/state/kvgrove/default"),
        ({"XDG_STATE_HOME": "", "HOME": "/home/a"}, "/home/a/.local/state/kvgrove/default"),
    ],
)
def test_the_default_place_follows_xdg(environment: dict[str, str], expected: str) -> None:
    assert str(default_path(environment)) == expected
