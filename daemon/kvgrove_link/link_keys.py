"""Whose keys open which link: CURVE key pairs by role.

Each process has the pair of its role (operator, daemon or gateway) and the public keys of the other roles. A server
admits the roles that have business with it, a client accepts the keys of the role it dials. A role may have several
public keys at once, which is what a rotation needs: the new one is known everywhere before anybody uses it, and the
former one until nobody does.

Keys are read again at each use, so that a rotated folder needs no restart of those who dial or admit; only a server's
own pair is fixed when it binds. It must not know sockets or messages.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from zmq import curve_keypair

from kvgrove_protocol.errors import Terminal

OPERATOR = "operator"
"""The role of planners; those of members are DAEMON and GATEWAY of the protocol."""

KEY_CHARACTERS = 40
"""Of a key in Z85."""


class LinkKeysUnusable(Terminal):
    """A key of the links is missing or damaged."""

    code = "link_keys"


@dataclass(frozen=True)
class KeyPair:
    """A CURVE key pair (Z85)."""

    public: bytes
    secret: bytes = field(repr=False)


class LinkKeys(Protocol):
    """What one process knows of keys."""

    def own(self) -> KeyPair:
        """Raises LinkKeysUnusable."""

    def public(self, role: str) -> tuple[bytes, ...]:
        """The public keys of ``role``, the current one first. Raises LinkKeysUnusable where there is none."""

    def role_of(self, public: bytes) -> str | None:
        """Whose key it is; None: a stranger's."""


class DirectoryKeys:
    """A folder of certificates in the form of pyzmq and czmq.

    ``<role>.key_secret`` is this process's own, ``<role>.key`` the current public key of a role, ``<role>.<any>.key``
    further ones of it (coming, or going).
    """

    def __init__(self, folder: Path, role: str, *, option: str = "--link-keys") -> None:
        """``option``: what people set the folder with, for messages."""
        self._folder, self._role, self._option = folder, role, option

    def own(self) -> KeyPair:
        public, secret = self._load(self._folder / f"{self._role}.key_secret")
        if secret is None:
            raise self._unusable(f"{self._role}.key_secret holds no secret key; copy the whole file there")
        return KeyPair(public, secret)

    def public(self, role: str) -> tuple[bytes, ...]:
        found = tuple(self._load(path)[0] for path in self._files(role))
        if not found:
            raise self._unusable(f"no {role}.key; copy the public certificate of that role there")
        return found

    def role_of(self, public: bytes) -> str | None:
        for path in sorted(self._folder.glob("*.key")):
            try:
                if self._load(path)[0] == public:
                    return path.name.partition(".")[0]
            except LinkKeysUnusable:
                continue  # one damaged file must not shut the others out
        return None

    def _files(self, role: str) -> list[Path]:
        current = self._folder / f"{role}.key"
        return [*([current] if current.is_file() else []), *sorted(self._folder.glob(f"{role}.*.key"))]

    def _load(self, path: Path) -> tuple[bytes, bytes | None]:
        try:
            return parse_certificate(path.read_bytes())
        except OSError as error:
            problem = f"{path.name}: {error.strerror}; `kvgrove link-keys create` writes such files"
        except ValueError as error:
            problem = f"{path.name}: {error}; copy the file again"
        raise self._unusable(problem)

    def _unusable(self, problem: str) -> LinkKeysUnusable:
        return LinkKeysUnusable(f"{self._option} {self._folder}: {problem}", field=self._option)


@dataclass(frozen=True)
class HeldKeys:
    """Keys in memory, for whoever gets them in another way than by files."""

    pair: KeyPair
    publics: Callable[[], dict[str, tuple[bytes, ...]]]
    """Role -> its public keys, the current one first."""

    def own(self) -> KeyPair:
        return self.pair

    def public(self, role: str) -> tuple[bytes, ...]:
        found = self.publics().get(role, ())
        if not found:
            raise LinkKeysUnusable(f"no public key of role {role} is known", field="link_keys")
        return found

    def role_of(self, public: bytes) -> str | None:
        return next((role for role, keys in self.publics().items() if public in keys), None)


def certificate(public: bytes, secret: bytes | None = None) -> bytes:
    """A certificate in pyzmq's form (ZPL); with ``secret`` one that its owner alone may read."""
    lines = ["metadata", "curve", f'    public-key = "{public.decode()}"']
    if secret is not None:
        lines.append(f'    secret-key = "{secret.decode()}"')
    return ("\n".join(lines) + "\n").encode()


def parse_certificate(content: bytes) -> tuple[bytes, bytes | None]:
    """Public and secret key. Raises ValueError."""
    found: dict[bytes, bytes] = {}
    for line in content.splitlines():
        name, separator, value = line.strip().partition(b"=")
        if separator and not name.startswith(b"#"):
            found.setdefault(name.strip(), value.strip(b" \t'\""))
    public, secret = found.get(b"public-key"), found.get(b"secret-key")
    if public is None or any(key is not None and len(key) != KEY_CHARACTERS for key in (public, secret)):
        raise ValueError(f"no certificate: a public-key of {KEY_CHARACTERS} characters is expected")
    return public, secret


def fresh_pair() -> KeyPair:
    """A new pair, from libzmq's randomness."""
    return KeyPair(*curve_keypair())
