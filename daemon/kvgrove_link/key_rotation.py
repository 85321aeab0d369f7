"""A fleet's link keys as folders of certificates, one for each role, and the steps by which a key is changed. Pure.

=============  =================================================================  =====================================
step           what lies in the folders after it                                  before the next step
=============  =================================================================  =====================================
`created`      each role's own pair, and the current public key of every role     start the fleet
`announced`    beside it the coming key of one role, known to all                 wait until every process can read it
`activated`    the coming key is the current one, the former is still let in      restart that role, one by one
`retired`      the former key is gone: it opens nothing any more                  nothing
=============  =================================================================  =====================================

Each step may be repeated, and changes nothing then. Where folders live (disk, Secrets) is not known here.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from kvgrove_link.link_keys import OPERATOR, KeyPair, LinkKeysUnusable, certificate
from kvgrove_protocol.control import DAEMON, GATEWAY

ROLES: Final = (OPERATOR, DAEMON, GATEWAY)

Folder = Mapping[str, bytes]
"""File name -> content."""
Folders = Mapping[str, Folder]
"""Role -> its folder."""


def created(folders: Folders, pair: Callable[[], KeyPair]) -> dict[str, dict[str, bytes]]:
    """Complete folders. What is there stays; a role without its own pair gets one, and its former public key goes."""
    made = {role: dict(folders.get(role, {})) for role in ROLES}
    for role in ROLES:
        if _secret(role) in made[role] and _public(role) in made[role]:
            continue
        fresh = pair()
        for folder in made.values():
            for name in [name for name in folder if _role(name) == role]:
                del folder[name]
            folder[_public(role)] = certificate(fresh.public)
        made[role][_secret(role)] = certificate(fresh.public, fresh.secret)
    for role in ROLES:
        for name, content in [(name, content) for name, content in made[role].items() if _public_of(name, role)]:
            for folder in made.values():
                folder.setdefault(name, content)
    return made


def announced(folders: Folders, role: str, pair: Callable[[], KeyPair]) -> dict[str, dict[str, bytes]]:
    """A coming key of ``role`` is known to everybody. Raises LinkKeysUnusable while a former one is still let in."""
    after = _whole(folders)
    if _public(role, "former") in after[role]:
        raise LinkKeysUnusable(
            f"{role}: its former key is still let in; finish that change first (`retire {role}`)", field=role
        )
    if _secret(role, "next") in after[role]:
        return after
    coming = pair()
    for folder in after.values():
        folder[_public(role, "next")] = certificate(coming.public)
    after[role][_secret(role, "next")] = certificate(coming.public, coming.secret)
    return after


def activated(folders: Folders, role: str) -> dict[str, dict[str, bytes]]:
    """``role`` uses its coming key; the former is still let in. Raises LinkKeysUnusable where none was announced."""
    after = _whole(folders)
    if _secret(role, "next") not in after[role]:
        if _public(role, "former") in after[role]:
            return after
        raise LinkKeysUnusable(f"{role}: no coming key; announce one first (`announce {role}`)", field=role)
    for folder in after.values():
        folder[_public(role, "former")] = folder[_public(role)]
        folder[_public(role)] = folder.pop(_public(role, "next"))
    after[role][_secret(role)] = after[role].pop(_secret(role, "next"))
    return after


def retired(folders: Folders, role: str) -> dict[str, dict[str, bytes]]:
    """The former key of ``role`` opens nothing any more."""
    after = _whole(folders)
    for folder in after.values():
        folder.pop(_public(role, "former"), None)
    return after


def _whole(folders: Folders) -> dict[str, dict[str, bytes]]:
    _require(role for role in ROLES if _secret(role) not in folders.get(role, {}))
    return {role: dict(folders[role]) for role in ROLES}


def _require(missing: Iterable[str]) -> None:
    for role in missing:
        raise LinkKeysUnusable(f"{role}: it has no keys yet; create them first (`create`)", field=role)


def _secret(role: str, which: str = "") -> str:
    return f"{role}.{which}.key_secret" if which else f"{role}.key_secret"


def _public(role: str, which: str = "") -> str:
    return f"{role}.{which}.key" if which else f"{role}.key"


def _role(name: str) -> str:
    return name.partition(".")[0]


def _public_of(name: str, role: str) -> bool:
    return _role(name) == role and name.endswith(".key")
