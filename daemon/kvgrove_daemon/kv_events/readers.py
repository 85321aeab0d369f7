"""Which readers are let in under CURVE: those whose public keys lie in the folder (ZeroMQ's ZAP, RFC 27).

Role: answer libzmq, which asks for each connection before its handshake ends. It belongs to the publisher's thread,
like the sockets that it guards: a second thread, with a loop of its own and a start that can time out, is one more
thing to fail. While nobody answers, nobody is let in. The folder is read once, at start.
"""

from pathlib import Path
from typing import Final

import zmq
from zmq.auth import load_certificates
from zmq.utils import z85

from kvgrove_daemon.kv_events.address import ExportRefused

ADDRESS: Final = "inproc://zeromq.zap.01"
"""Where libzmq looks for who is asked, in each context."""
_VERSION: Final = b"1.0"
_FRAMES: Final = 7
_CURVE_KEY_BYTES: Final = 32


class KnownReaders:
    """Owns its socket; whoever destroys the context closes it."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", folder: Path) -> None:
        """Raises ExportRefused for a folder that is none, or with a certificate that cannot be read."""
        if not folder.is_dir():
            raise ExportRefused(f"--kv-events-clients {folder}: there is no such folder", field="--kv-events-clients")
        try:
            self._known = frozenset(load_certificates(folder))
        except (OSError, ValueError):
            raise ExportRefused(
                f"--kv-events-clients {folder}: one of its .key files is no ZeroMQ certificate; take it out, or make "
                "it anew with zmq.auth.create_certificates",
                field="--kv-events-clients",
            ) from None
        self.socket = context.socket(zmq.REP)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(ADDRESS)

    def answer(self) -> None:
        """Answer who waits, if somebody does. Raises ZMQError when the socket is gone."""
        while True:
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            status, text = (b"200", b"OK") if self._may_read(frames) else (b"400", b"No access")
            self.socket.send_multipart([_VERSION, frames[1] if len(frames) > 1 else b"", status, text, b"", b""])

    def _may_read(self, frames: list[bytes]) -> bool:
        """``version | request | domain | address | identity | mechanism | public key``."""
        if len(frames) != _FRAMES or frames[0] != _VERSION or frames[5] != b"CURVE":
            return False
        return len(frames[6]) == _CURVE_KEY_BYTES and z85.encode(frames[6]) in self._known
