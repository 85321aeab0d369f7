"""Files that survive a crash: written beside their place, flushed to the disk, then renamed over it.

A reader sees the old content or the new, never a part. `DurableFile` adds a header with the format's version and a
checksum, because its content must never come back older or other than it was written: a damaged file is an error that
says what to do, not a fresh start. This module does not know what is stored.
"""

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from kvgrove_cli.errors import FleetProblem

T = TypeVar("T")


class Unwritable(FleetProblem):
    """A file cannot be written now; what it held before is intact."""

    code = "unwritable"


def write_atomically(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Replace ``path``; on return the new content is on the disk. Leaves no temporary file behind on failure.

    Raises Unwritable where the disk is full or does not take writes.
    """
    try:
        _write_atomically(path, content, mode)
    except OSError as error:
        raise Unwritable(f"{path} cannot be written: {error.strerror}; make room or allow writing there") from None


def _write_atomically(path: Path, content: bytes, mode: int) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)  # the rename itself is data of the directory
    finally:
        os.close(directory)


class _Header(msgspec.Struct, frozen=True):
    format: str
    version: int
    sha256: str


class DurableFile(Generic[T]):
    """One value of type ``T`` as JSON under a header line. ``version`` is raised when ``T`` changes incompatibly."""

    def __init__(self, path: Path, kind: type[T], *, name: str, version: int, cure: str) -> None:
        self.path = path
        self._name, self._version, self._cure = name, version, cure
        self._decoder = msgspec.json.Decoder(kind)
        self._header_decoder = msgspec.json.Decoder(_Header)

    def load(self) -> T | None:
        """The stored value, or None where there is no file. Raises FleetProblem for anything that is not intact."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise FleetProblem(f"{self.path}: {error.strerror}; {self._cure}") from None
        first, separator, body = content.partition(b"\n")
        try:
            header = self._header_decoder.decode(first)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise self._damaged("its header is not readable") from None
        if not separator or header.format != self._name:
            raise self._damaged(f"it is not a {self._name} file")
        if header.version != self._version:
            raise FleetProblem(
                f"{self.path}: format version {header.version}, this kvgrove reads {self._version}; "
                "run the version that wrote it, or use another state directory"
            )
        if hashlib.sha256(body).hexdigest() != header.sha256:
            raise self._damaged("its checksum does not match")
        try:
            return self._decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._damaged(str(error)) from None

    def save(self, value: T) -> None:
        """Durable on return; readable by the owner only, since it may hold secrets."""
        body = msgspec.json.encode(value)
        header = _Header(self._name, self._version, hashlib.sha256(body).hexdigest())
        write_atomically(self.path, msgspec.json.encode(header) + b"\n" + body)

    def _damaged(self, what: str) -> FleetProblem:
        return FleetProblem(f"{self.path} is damaged ({what}); {self._cure}", code="state_damaged")
