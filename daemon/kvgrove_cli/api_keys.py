"""Writes the API keys file that gateways read: who may call a fleet, by the hash of a secret that is shown once.

The format is the gateway's (`kvgrove_gateway.identity.key_file`), and its parser judges what is read and what is about
to be written. A key is 256 random bits, so a plain SHA-256 cannot be turned back by guessing. Gateways read the file
again when it changes. Writers take turns by a lock on the file's directory.
"""

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import count
from pathlib import Path

import yaml
from pydantic import ValidationError

from kvgrove_cli.durable import write_atomically
from kvgrove_cli.errors import UsageProblem
from kvgrove_gateway.identity.files import BrokenFile
from kvgrove_gateway.identity.key_file import KeyEntry, parse_keys

KEY_PREFIX = "kvg_"
_HEADER = "# API keys of a kvgrove fleet, hashed: `kvgrove keys create` adds one and shows it once.\n"


def read(path: Path) -> list[KeyEntry]:
    """Raises UsageProblem, naming file and field, where the file is missing or not what it should be."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise UsageProblem(f"{path}: no such file; `kvgrove keys create --file {path} ...` makes one") from None
    except OSError as error:
        raise UsageProblem(f"{path}: {error.strerror}") from None
    try:
        return parse_keys(content)
    except BrokenFile as error:
        raise UsageProblem(f"{path}: {error.message}", field=error.field) from None


def create(
    path: Path,
    *,
    secret: str,
    key_id: str,
    tenant: str,
    user: str | None = None,
    scopes: list[str] | None = None,
    namespaces: list[str] | None = None,
    explain: bool = False,
    operator: bool = False,
    monitor: bool = False,
) -> None:
    """Append a key for ``secret``; the file is made (0600) if there is none. Raises UsageProblem, naming the field."""
    try:
        entry = KeyEntry(
            id=key_id,
            sha256=hashed(secret),
            tenant=tenant,
            user=user,
            scopes=scopes or [],
            namespaces=namespaces,
            explain=explain,
            operator=operator,
            monitor=monitor,
        )
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise UsageProblem(f"{field}: {first['msg']}", field=field) from None
    path.parent.mkdir(parents=True, exist_ok=True)
    with _exclusive(path.parent):
        keys = read(path) if path.exists() else []
        if any(known.id == key_id for known in keys):
            raise UsageProblem(f"{path}: there is a key {key_id!r} already: choose another id or revoke it", field="id")
        _write(path, [*keys, entry])


def rotate(path: Path, key_id: str, *, secret: str, until: datetime | None) -> str:
    """Add a key for ``secret`` that speaks for the same caller as ``key_id``; the new key's id.

    The old one is refused from ``until`` on, or taken out at once if that is None. Raises UsageProblem.
    """
    with _exclusive(path.parent):
        keys = read(path)
        old = _find(path, keys, key_id)
        new_id = _next_id(key_id, {key.id for key in keys})
        left = [key for key in keys if key.id != key_id]
        if until is not None:
            ends = until if old.expires is None else min(until, old.expires)
            left = [key if key.id != key_id else old.model_copy(update={"expires": ends}) for key in keys]
        _write(path, [*left, old.model_copy(update={"id": new_id, "sha256": hashed(secret), "expires": None})])
    return new_id


def revoke(path: Path, key_id: str) -> None:
    """Take the key out: gateways refuse it from the next request on."""
    with _exclusive(path.parent):
        keys = read(path)
        revoked = _find(path, keys, key_id)
        _write(path, [key for key in keys if key is not revoked])


def new_secret(random_bytes: Callable[[int], bytes] = os.urandom) -> str:
    """A fresh key: 256 random bits as hex, behind a prefix by which leak scanners can know it."""
    return KEY_PREFIX + random_bytes(32).hex()


def hashed(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _find(path: Path, keys: list[KeyEntry], key_id: str) -> KeyEntry:
    for key in keys:
        if key.id == key_id:
            return key
    known = ", ".join(key.id for key in keys) or "none"
    raise UsageProblem(f"{path}: there is no key {key_id!r}; known: {known}", field="id")


def _next_id(key_id: str, taken: set[str]) -> str:
    """``app`` -> ``app.2`` -> ``app.3``."""
    stem, _, number = key_id.rpartition(".")
    stem, start = (stem, int(number)) if stem and number.isdecimal() else (key_id, 1)
    return next(name for n in count(start + 1) if (name := f"{stem}.{n}") not in taken)


def _write(path: Path, keys: list[KeyEntry]) -> None:
    listed = {"keys": [key.model_dump(mode="json", exclude_defaults=True) for key in keys]}
    write_atomically(path, (_HEADER + yaml.safe_dump(listed, sort_keys=False)).encode())


@contextmanager
def _exclusive(directory: Path) -> Iterator[None]:
    try:
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise UsageProblem(f"{directory}: {error.strerror}") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
