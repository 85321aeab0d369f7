"""TLS of the HTTP port, from files that somebody else renews.

Certificates are replaced while a gateway runs (cert-manager, ACME clients, a mounted Secret). New connections get the
new one as soon as it lies there whole; a pair that does not fit, or is half written, changes nothing and is said.
"""

import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvgrove_protocol.errors import Terminal

log = logging.getLogger(__name__)


class TlsUnusable(Terminal):
    """Certificate and key cannot be used."""

    code = "tls_unusable"


@dataclass(frozen=True)
class TlsFiles:
    """PEM: the certificate with its chain, and its key."""

    certificate: Path
    key: Path

    def stamp(self) -> tuple[int, ...]:
        """Changes when a file is written or replaced. Raises OSError."""
        found = [path.stat() for path in (self.certificate, self.key)]
        return tuple(part for each in found for part in (each.st_ino, each.st_size, each.st_mtime_ns))


class ServerTls:
    """The context of a listening port. `refresh` from time to time, from one thread at a time."""

    def __init__(self, files: TlsFiles, *, on_failure: Callable[[], None]) -> None:
        """Reads the files. Raises TlsUnusable. ``on_failure``: a renewed pair could not be used."""
        self._files, self._on_failure = files, on_failure
        try:
            self._stamp = files.stamp()
            self.context = _loaded(files)
        except (OSError, ssl.SSLError) as error:
            raise TlsUnusable(
                f"--tls-cert {files.certificate}, --tls-key {files.key}: {_reason(error)}; give a PEM certificate with "
                "its chain, and its key",
                field="--tls-cert",
            ) from None

    def refresh(self) -> bool:
        """Whether a renewed pair is used from now on."""
        try:
            stamp = self._files.stamp()
            if stamp == self._stamp:
                return False
            _loaded(self._files)  # apart first: a pair that does not fit would leave the context with half of it
            self.context.load_cert_chain(self._files.certificate, self._files.key)
        except (OSError, ssl.SSLError) as error:
            log.warning("the renewed certificate cannot be used, the former stays: %s", _reason(error))
            self._on_failure()
            return False
        self._stamp = stamp
        log.info("the renewed certificate is used from now on")
        return True


def _loaded(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(files.certificate, files.key)
    return context


def _reason(error: OSError | ssl.SSLError) -> str:
    return error.reason if isinstance(error, ssl.SSLError) and error.reason else error.strerror or type(error).__name__
