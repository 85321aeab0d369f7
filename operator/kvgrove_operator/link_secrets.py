"""The fleet's link keys in Secrets of the operator's namespace: made once, mounted by those whose keys they are.

One Secret for each role, laid out as the folder that `--link-keys` wants: a Pod mounts that of its role and no other.
The operator makes what is missing, and never changes what is there: a chart that made keys would make others each time
it is rendered. Whoever rotates a key writes the Secrets (docs/links.md); they are read again from time to time.
Losing a Secret costs a new pair for its role, whose processes must then be restarted.
"""

import asyncio
import base64
import logging
from typing import Any, Final

from kvgrove_link.key_rotation import ROLES, Folders, created
from kvgrove_link.link_keys import OPERATOR, HeldKeys, KeyPair, LinkKeysUnusable, fresh_pair, parse_certificate
from kvgrove_operator import paths
from kvgrove_operator.kube import Conflict, Kube
from kvgrove_protocol.errors import Retryable

log = logging.getLogger(__name__)

REFRESH_SECONDS: Final = 60.0
_OWN: Final = paths.link_keys_secret(OPERATOR)
_TRIES: Final = 5
_LABELS: Final = {"app.kubernetes.io/name": "kvgrove", "app.kubernetes.io/managed-by": "kvgrove-operator"}

Object = dict[str, Any]


class LinkSecrets:
    """The operator's `LinkKeys`. `load` before anything else."""

    def __init__(self, kube: Kube, namespace: str) -> None:
        self._kube, self._namespace = kube, namespace
        self._held: HeldKeys | None = None

    async def load(self) -> None:
        """Read the keys, and make those that are missing. Raises LinkKeysUnusable for a damaged Secret."""
        for attempt in range(_TRIES):
            secrets = {role: await self._kube.get(self._path(role)) for role in ROLES}
            found = {role: _files(secret) for role, secret in secrets.items() if secret is not None}
            wanted = created(found, fresh_pair)
            try:
                for role in ROLES:
                    if found.get(role) != wanted[role]:
                        await self._write(role, wanted[role], secrets[role])
            except Conflict:
                if attempt == _TRIES - 1:
                    raise
                continue  # somebody else makes them too: take theirs
            self._take(wanted)
            return

    async def keep(self) -> None:
        """Read them again from time to time, until cancelled."""
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            try:
                await self.load()
            except (Retryable, LinkKeysUnusable) as error:
                log.warning("link keys are not read anew: %s", error.message)

    def own(self) -> KeyPair:
        return self._read().own()

    def public(self, role: str) -> tuple[bytes, ...]:
        return self._read().public(role)

    def role_of(self, public: bytes) -> str | None:
        return self._read().role_of(public)

    def _read(self) -> HeldKeys:
        if self._held is None:
            raise LinkKeysUnusable("the link keys have not been read yet", field=_OWN)
        return self._held

    def _take(self, folders: Folders) -> None:
        own = folders[OPERATOR]
        public, secret = _parsed(f"{OPERATOR}.key_secret", own)
        if secret is None:
            raise LinkKeysUnusable(
                f"Secret {_OWN}: no secret key in it; restore it, or delete the Secret for a new pair", field=_OWN
            )
        publics: dict[str, tuple[bytes, ...]] = {}
        for name in sorted(own, key=lambda name: (name.count("."), name)):  # the current one is the shortest name
            if name.endswith(".key"):
                role = name.partition(".")[0]
                publics[role] = (*publics.get(role, ()), _parsed(name, own)[0])
        self._held = HeldKeys(KeyPair(public, secret), lambda: publics)

    async def _write(self, role: str, files: dict[str, bytes], held: Object | None) -> None:
        body: Object = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": paths.link_keys_secret(role), "namespace": self._namespace, "labels": _LABELS},
            "type": "kvgrove.dev/link-keys",
            "data": {name: base64.b64encode(content).decode() for name, content in sorted(files.items())},
        }
        if held is None:
            await self._kube.create(paths.secrets(self._namespace), body)
            log.info("Secret %s: link keys of role %s were made", paths.link_keys_secret(role), role)
        else:
            kept = held["metadata"]
            body["metadata"] = kept
            body["type"] = held.get("type", "Opaque")
            await self._kube.replace(self._path(role), body)
            log.warning("Secret %s: link keys were completed; restart the processes of a role that has new ones", role)

    def _path(self, role: str) -> str:
        return f"{paths.secrets(self._namespace)}/{paths.link_keys_secret(role)}"


def _files(secret: Object) -> dict[str, bytes]:
    return {name: base64.b64decode(content) for name, content in (secret.get("data") or {}).items()}


def _parsed(name: str, files: dict[str, bytes] | Any) -> tuple[bytes, bytes | None]:
    try:
        return parse_certificate(files[name])
    except (KeyError, ValueError) as error:
        raise LinkKeysUnusable(
            f"Secret {_OWN}: {name}: {error}; restore it, or delete the Secret for a new pair", field=_OWN
        ) from None
