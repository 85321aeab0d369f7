"""API keys -> verified identities.

The file holds SHA-256 digests of keys, never keys. Looking a digest up in a table takes the same time for every wrong
key: what could leak through timing is a digest, which opens nothing. The file is read again when it changes; a broken
one is counted and the last good one stays in force, so that a bad edit locks nobody out and lets nobody new in.

An identity comes from here and from nowhere else: no header or body field can choose tenant or user (I2).
"""

import hashlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from kvgrove_gateway.errors import Unauthorized
from kvgrove_protocol.errors import Terminal
from kvgrove_protocol.identity import Caller

log = logging.getLogger(__name__)

MAX_FILE_BYTES = 16 << 20
MAX_KEY_CHARS = 512

Name = Annotated[str, StringConstraints(min_length=1, max_length=256)]


class BrokenKeyFile(Terminal):
    """The keys file cannot be used as it is."""

    code = "broken_key_file"


class KeyEntry(BaseModel):
    """One key of the file."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    id: Name
    """Names the key in logs; not secret."""
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    tenant: Name
    user: Name | None = None
    scopes: list[Name] = Field(default_factory=list, max_length=256)
    namespaces: list[Name] | None = None
    """``<k8s namespace>/<name>`` of the namespaces the key may use; absent: all that admit its tenant."""
    explain: bool = False
    """An operator's key: told how its requests are routed, where the gateway tells at all (see `route`)."""


class KeyList(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    keys: list[KeyEntry] = Field(max_length=100_000)


@dataclass(frozen=True)
class Identity:
    """A verified caller, and what its credential is limited to."""

    key_id: str
    caller: Caller
    namespaces: frozenset[str] | None
    explain: bool = False
    """May be told how its requests are routed."""

    def may_name(self, namespace: str) -> bool:
        return self.namespaces is None or namespace in self.namespaces


def parse_keys(text: bytes) -> dict[bytes, Identity]:
    """Digest of a key -> identity; raises BrokenKeyFile naming the field."""
    try:
        listed = KeyList.model_validate(_yaml(text))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        path = ".".join(str(part) for part in first["loc"]) or "the file"
        raise BrokenKeyFile(f"{path}: {first['msg']}", field=path) from None
    table: dict[bytes, Identity] = {}
    ids: set[str] = set()
    for position, entry in enumerate(listed.keys):
        digest = bytes.fromhex(entry.sha256)
        if digest in table or entry.id in ids:
            raise BrokenKeyFile(f"keys.{position}: its id or sha256 occurs twice", field=f"keys.{position}")
        ids.add(entry.id)
        caller = Caller(tenant=entry.tenant, user=entry.user, scopes=tuple(sorted(set(entry.scopes))))
        limited = None if entry.namespaces is None else frozenset(entry.namespaces)
        table[digest] = Identity(key_id=entry.id, caller=caller, namespaces=limited, explain=entry.explain)
    return table


def _yaml(text: bytes) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}" if mark is not None else "the file"
        raise BrokenKeyFile(f"{where} is not YAML") from None
    except RecursionError:
        raise BrokenKeyFile("the file is nested too deeply") from None
    except (ValueError, KeyError, AttributeError):
        # PyYAML's constructors let Python's own errors through: 2026-13-01, 0x_, !!bool maybe, !!timestamp soon.
        raise BrokenKeyFile("a date, number or tagged value cannot be read: put it in quotes") from None


class KeyRing:
    """The keys in force. `refresh` does the file's I/O; `identify` only looks up."""

    def __init__(self, path: Path, *, on_failure: Callable[[], None]) -> None:
        """Reads ``path``; raises BrokenKeyFile where there is no good file to begin with."""
        self._path = path
        self._on_failure = on_failure
        self._seen = self._read()
        self._table = self._parse(self._seen)
        self._trouble = ""

    def __len__(self) -> int:
        return len(self._table)

    def refresh(self) -> bool:
        """Read the file again; True if other keys are in force now. A broken file changes nothing and is counted.

        Compares content, not times: a mounted Secret is swapped by symbolic link, with whatever times it carries.
        """
        try:
            content = self._read()
            if content == self._seen:
                self._trouble = ""
                return False
            table = self._parse(content)
        except BrokenKeyFile as error:
            if error.message != self._trouble:  # reported once, not at every look
                self._trouble = error.message
                self._on_failure()
                log.error("keys file not taken over, the last good one stays in force: %s", error.message)
            return False
        self._seen, self._table, self._trouble = content, table, ""
        log.info("keys file taken over: %d keys", len(self._table))
        return True

    def identify(self, authorization: str | None) -> Identity:
        """The identity behind an ``Authorization`` header; raises Unauthorized."""
        scheme, _, key = (authorization or "").partition(" ")
        key = key.strip()
        if scheme.lower() != "bearer" or not key:
            raise Unauthorized("No API key: send it as 'Authorization: Bearer <key>'.", code="missing_api_key")
        if len(key) > MAX_KEY_CHARS:
            raise Unauthorized("Incorrect API key.")
        identity = self._table.get(hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest())
        if identity is None:
            raise Unauthorized("Incorrect API key.")
        return identity

    def _read(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                content = file.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            raise BrokenKeyFile(f"{self._path}: {error.strerror or 'cannot be read'}") from None
        if len(content) > MAX_FILE_BYTES:
            raise BrokenKeyFile(f"{self._path}: larger than {MAX_FILE_BYTES} bytes")
        return content

    def _parse(self, content: bytes) -> dict[bytes, Identity]:
        try:
            return parse_keys(content)
        except BrokenKeyFile as error:
            raise BrokenKeyFile(f"{self._path}: {error.message}", field=error.field) from None


def holds_all_of(caller: Caller, wanted: Iterable[str]) -> bool:
    """Whether ``caller`` has every one of the scopes; true where none is wanted."""
    return frozenset(wanted) <= frozenset(caller.scopes)
