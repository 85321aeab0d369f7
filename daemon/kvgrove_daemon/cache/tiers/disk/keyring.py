"""The secrets that are known now, by namespace.

Role: which secret new extents are wrapped by, and which ones may open old ones. Invariants: in memory only; after
`forget` nothing of the namespace opens. Must not know: files, where secrets come from, leases.

Its own lock, so that a lease that ends in one thread ends at once for all.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from kvgrove_daemon.cache.tiers.disk.causes import SecretUnknown
from kvgrove_daemon.cache.tiers.disk.sealing import Secret


@dataclass(frozen=True, slots=True)
class Secrets:
    """Of one namespace: the one that wraps, and, while survivors are being rewrapped, the one before it."""

    current: Secret
    former: Secret | None = None

    @property
    def openers(self) -> tuple[Secret, ...]:
        return (self.current,) if self.former is None else (self.current, self.former)


class Keyring:
    """Namespace UID -> `Secrets`."""

    def __init__(self) -> None:
        self._known: dict[str, Secrets] = {}
        self._lock = threading.Lock()

    def set(self, namespace: str, secrets: Secrets) -> None:
        with self._lock:
            self._known[namespace] = secrets

    def forget(self, namespace: str) -> None:
        with self._lock:
            self._known.pop(namespace, None)

    def clear(self) -> None:
        with self._lock:
            self._known.clear()

    def of(self, namespace: str) -> Secrets:
        """Raises SecretUnknown."""
        with self._lock:
            found = self._known.get(namespace)
        if found is None:
            raise SecretUnknown("disk: no secret of this namespace is known: it comes with the next plan and lease")
        return found

    def wraps_by(self, namespace: str, secret: Secret) -> bool:
        """Whether ``secret`` is still the one that new extents are wrapped by."""
        with self._lock:
            found = self._known.get(namespace)
        return found is not None and found.current == secret
