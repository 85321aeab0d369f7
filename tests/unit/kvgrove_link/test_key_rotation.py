"""The steps by which a key is made and changed: at each of them everybody gets in who should."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvgrove_link.key_rotation import ROLES, Folders, activated, announced, created, retired
from kvgrove_link.link_keys import OPERATOR, DirectoryKeys, LinkKeysUnusable, fresh_pair
from kvgrove_protocol.control import DAEMON, GATEWAY


def keys_of(folders: Folders, tmp_path: Path, role: str) -> DirectoryKeys:
    folder = tmp_path / role
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    for name, content in folders[role].items():
        (folder / name).write_bytes(content)
    return DirectoryKeys(folder, role)


def test_made_once_and_then_left_alone() -> None:
    first = created({}, fresh_pair)
    assert created(first, fresh_pair) == first
    assert all(sum(name.endswith("_secret") for name in folder) == 1 for folder in first.values())


def test_a_role_that_lost_its_folder_gets_a_new_pair_and_its_old_key_opens_nothing(tmp_path: Path) -> None:
    before = created({}, fresh_pair)
    old = keys_of(before, tmp_path, GATEWAY).own().public
    after = created({role: folder for role, folder in before.items() if role != GATEWAY}, fresh_pair)
    assert keys_of(after, tmp_path, DAEMON).role_of(old) is None
    assert keys_of(after, tmp_path, DAEMON).own() == keys_of(before, tmp_path, DAEMON).own()
    assert keys_of(after, tmp_path, DAEMON).role_of(keys_of(after, tmp_path, GATEWAY).own().public) == GATEWAY


@pytest.mark.parametrize("role", ROLES)
def test_everybody_gets_in_at_every_step_whether_restarted_or_not(role: str, tmp_path: Path) -> None:
    steps: list[Folders] = [created({}, fresh_pair)]
    steps.append(announced(steps[-1], role, fresh_pair))
    steps.append(activated(steps[-1], role))
    steps.append(retired(steps[-1], role))
    pairs = [keys_of(folders, tmp_path, role).own() for folders in steps]
    assert pairs[0] == pairs[1] != pairs[2] == pairs[3]
    others = [keys for keys in ROLES if keys != role]
    for at, folders in enumerate(steps):
        known = [keys_of(folders, tmp_path, other) for other in others]
        in_use = {pairs[at].public} if at != 2 else {pairs[0].public, pairs[2].public}  # some are not restarted yet
        for keys in known:
            assert in_use <= set(keys.public(role))
            assert all(keys.role_of(public) == role for public in in_use)
    assert keys_of(steps[-1], tmp_path, others[0]).role_of(pairs[0].public) is None


def test_each_step_may_be_repeated() -> None:
    folders = announced(created({}, fresh_pair), DAEMON, fresh_pair)
    assert announced(folders, DAEMON, fresh_pair) == folders
    folders = activated(folders, DAEMON)
    assert activated(folders, DAEMON) == folders
    folders = retired(folders, DAEMON)
    assert retired(folders, DAEMON) == folders


def test_steps_out_of_order_are_refused_with_the_one_that_is_missing() -> None:
    with pytest.raises(LinkKeysUnusable, match="create them first"):
        announced({}, OPERATOR, fresh_pair)
    folders = created({}, fresh_pair)
    with pytest.raises(LinkKeysUnusable, match="announce one first"):
        activated(folders, OPERATOR)
    halfway = activated(announced(folders, OPERATOR, fresh_pair), OPERATOR)
    with pytest.raises(LinkKeysUnusable, match="finish that change first"):
        announced(halfway, OPERATOR, fresh_pair)
