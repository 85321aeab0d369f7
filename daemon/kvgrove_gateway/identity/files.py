"""Settings files that are edited while the gateway runs: closed YAML, taken over whole or not at all.

A broken file is counted and the last good one stays in force, so that a bad edit locks nobody out and lets nobody new
in. Errors name the field and what is wrong with it, never its value: it may be a secret.
"""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from kvgrove_protocol.errors import Terminal

log = logging.getLogger(__name__)

MAX_FILE_BYTES = 16 << 20

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


class BrokenFile(Terminal):
    """A settings file cannot be used as it is."""

    code = "broken_file"


def parse_closed(text: bytes, model: type[M]) -> M:
    """``text`` as one ``model``; raises BrokenFile naming the field."""
    try:
        return model.model_validate(_yaml(text))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        path = ".".join(str(part) for part in first["loc"]) or "the file"
        raise BrokenFile(f"{path}: {first['msg']}", field=path) from None


def _yaml(text: bytes) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}" if mark is not None else "the file"
        raise BrokenFile(f"{where} is not YAML") from None
    except RecursionError:
        raise BrokenFile("the file is nested too deeply") from None
    except (ValueError, KeyError, AttributeError):
        # PyYAML's constructors let Python's own errors through: 2026-13-01, 0x_, !!bool maybe, !!timestamp soon.
        raise BrokenFile("a date, number or tagged value cannot be read: put it in quotes") from None


def read_bounded(path: Path) -> bytes:
    """Raises BrokenFile naming the file where it cannot be read or is too large."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise BrokenFile(f"{path}: {error.strerror or 'cannot be read'}") from None
    if len(content) > MAX_FILE_BYTES:
        raise BrokenFile(f"{path}: larger than {MAX_FILE_BYTES} bytes")
    return content


class WatchedFile(Generic[T]):
    """The last good content of a file, as parsed. `refresh` does the I/O; `value` only looks up.

    One `refresh` at a time; `value` may be read from any thread.
    """

    def __init__(self, path: Path, parse: Callable[[bytes], T], *, what: str, on_failure: Callable[[], None]) -> None:
        """Reads ``path``; raises BrokenFile where there is no good file to begin with. ``what`` names it in logs."""
        self.path = path
        self._parse_content = parse
        self._what = what
        self._on_failure = on_failure
        self._signature = _signature(path)
        self._seen = read_bounded(path)
        self.value = self._parse(self._seen)
        self._trouble = ""

    def replaced(self) -> bool:
        """Whether another file lies there than at the last look: one ``stat``, no reading.

        Sees every replacement by renaming and every swap of a link. Two writes into the same file within a tick of the
        kernel's clock look like one: `refresh`, which compares content, finds them later.
        """
        return _signature(self.path) != self._signature

    def refresh(self) -> bool:
        """Read the file again; True if another value is in force now. A broken file changes nothing and is counted.

        Compares content, not times: a mounted Secret is swapped by symbolic link, with whatever times it carries.
        """
        signature = _signature(self.path)  # before reading: what is put there meanwhile is looked at next time
        try:
            return self._take_over()
        finally:
            self._signature = signature  # after it: until then `replaced` is true, and nobody goes by the old value

    def _take_over(self) -> bool:
        try:
            content = read_bounded(self.path)
            if content == self._seen:
                self._trouble = ""
                return False
            value = self._parse(content)
        except BrokenFile as error:
            if error.message != self._trouble:  # reported once, not at every look
                self._trouble = error.message
                self._on_failure()
                log.error("%s not taken over, the last good one stays in force: %s", self._what, error.message)
            return False
        self._seen, self.value, self._trouble = content, value, ""
        log.info("%s taken over", self._what)
        return True

    def _parse(self, content: bytes) -> T:
        try:
            return self._parse_content(content)
        except BrokenFile as error:
            raise BrokenFile(f"{self.path}: {error.message}", field=error.field) from None


def _signature(path: Path) -> tuple[int, ...] | None:
    """What differs between any two files that ever lay at ``path``; None where there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
