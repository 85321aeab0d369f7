"""The key that a member signs its receipts with (Ed25519).

A daemon keeps it in its state directory, readable by its owner only, so that its receipts of all boots are by one key;
a gateway keeps nothing and makes one for each boot. The private half never leaves the process but into that file.
"""

import os
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace

from kvgrove_protocol.errors import Terminal
from kvgrove_protocol.receipts import Receipt, signed_bytes

_KEY_BYTES: Final = 32


class MemberKeyDamaged(Terminal):
    """The key file is not one."""

    code = "member_key_damaged"


class MemberKey:
    """Has no ``repr`` of its content."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.public: bytes = private.public_key().public_bytes_raw()
        """32 bytes, for Hello."""

    @classmethod
    def fresh(cls) -> "MemberKey":
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def load_or_make(cls, path: Path) -> "MemberKey":
        """The key in ``path``, made there if there is none: whole and on the disk on return.

        Raises MemberKeyDamaged for a file that is no key.
        """
        if not path.exists():
            _write(path, Ed25519PrivateKey.generate().private_bytes_raw())
        content = path.read_bytes()
        if len(content) != _KEY_BYTES:
            raise MemberKeyDamaged(
                f"{path}: {len(content)} bytes, a key has {_KEY_BYTES}; move it away to get a new one"
            )
        return cls(Ed25519PrivateKey.from_private_bytes(content))

    def sign(self, receipt: Receipt) -> Receipt:
        """``receipt`` with its signature."""
        return replace(receipt, signature=self._private.sign(signed_bytes(receipt)))


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_suffix(".new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
