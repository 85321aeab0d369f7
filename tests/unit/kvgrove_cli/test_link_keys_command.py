"""`kvgrove link-keys`: folders that processes can use, at every step of a change."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kvgrove_cli.commands.link_keys import link_keys
from kvgrove_cli.errors import UsageProblem
from kvgrove_link.key_rotation import ROLES
from kvgrove_link.link_keys import OPERATOR, DirectoryKeys
from kvgrove_protocol.control import DAEMON


def run(*arguments: str) -> Result:
    done = CliRunner().invoke(link_keys, arguments)
    if isinstance(done.exception, UsageProblem):
        raise done.exception
    return done


def test_folders_are_made_once_with_secrets_that_only_their_owner_reads(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    assert f"daemon: --link-keys {folder / 'daemon'}" in run("create", str(folder)).output
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    run("create", str(folder))
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    for role in ROLES:
        assert (folder / role / f"{role}.key_secret").stat().st_mode & 0o077 == 0
        assert len(list((folder / role).glob("*.key_secret"))) == 1, "no role has another's secret"


def test_a_key_is_changed_in_three_steps(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    run("create", str(folder))
    old = DirectoryKeys(folder / OPERATOR, OPERATOR).own()
    run("announce", str(folder), OPERATOR)
    assert DirectoryKeys(folder / OPERATOR, OPERATOR).own() == old
    run("activate", str(folder), OPERATOR)
    new, daemon = DirectoryKeys(folder / OPERATOR, OPERATOR).own(), DirectoryKeys(folder / DAEMON, DAEMON)
    assert new != old
    assert daemon.public(OPERATOR) == (new.public, old.public)
    run("retire", str(folder), OPERATOR)
    assert daemon.public(OPERATOR) == (new.public,)
    assert daemon.role_of(old.public) is None


def test_a_step_too_early_is_refused_with_the_one_before_it(tmp_path: Path) -> None:
    with pytest.raises(UsageProblem, match="create them first"):
        run("announce", str(tmp_path / "keys"), DAEMON)
    run("create", str(tmp_path / "keys"))
    with pytest.raises(UsageProblem, match="announce one first"):
        run("activate", str(tmp_path / "keys"), DAEMON)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("a file")
    with pytest.raises(UsageProblem, match=r"keys"):
        run("create", str(tmp_path / "keys" / "below"))
