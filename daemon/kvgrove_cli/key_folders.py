"""A fleet's link keys on disk: a folder for each role, made once, changed in steps.

Written whole file by whole file, secrets first readable by nobody but their owner; where a step is broken off, the same
step again completes it.
"""

import os
from collections.abc import Callable
from pathlib import Path

from kvgrove_cli.errors import UsageProblem
from kvgrove_link.key_rotation import ROLES, Folders, created
from kvgrove_link.link_keys import OPERATOR, DirectoryKeys, fresh_pair


def ensure(path: Path) -> DirectoryKeys:
    """The keys of the planner at ``path``; everybody's are made where they are missing. Raises UsageProblem."""
    change(path, lambda folders: created(folders, fresh_pair))
    return DirectoryKeys(path / OPERATOR, OPERATOR, option="--state-dir")


def change(path: Path, step: Callable[[Folders], Folders]) -> None:
    """Take ``step`` on the folders below ``path``. Raises UsageProblem where they cannot be read or written."""
    try:
        before = {role: _read(path / role) for role in ROLES}
        after = step(before)
        for role in ROLES:
            _write(path / role, before[role], dict(after[role]))
    except OSError as error:
        raise UsageProblem(f"{error.filename or path}: {error.strerror}", field="link_keys") from None


def _read(folder: Path) -> dict[str, bytes]:
    if not folder.is_dir():
        return {}
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".key", ".key_secret")}


def _write(folder: Path, before: dict[str, bytes], after: dict[str, bytes]) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, content in after.items():
        if before.get(name) != content:
            _replace(folder / name, content, 0o600 if name.endswith(".key_secret") else 0o644)
    for name in before.keys() - after.keys():
        (folder / name).unlink(missing_ok=True)


def _replace(path: Path, content: bytes, mode: int) -> None:
    scratch = path.with_name(f".{path.name}.new")
    scratch.unlink(missing_ok=True)
    with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)
