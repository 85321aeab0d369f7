"""``python -m kvgrove_gateway``: one gateway."""

import asyncio
import logging
import os
import signal
import socket
import sys
from pathlib import Path

from kvgrove_gateway.gateway import Gateway
from kvgrove_gateway.settings import BadSettings, Settings, parse
from kvgrove_link.errors import Superseded
from kvgrove_protocol.errors import KvgroveError

log = logging.getLogger("kvgrove_gateway")


SWITCH_S = 0.001
"""How long the event loop waits for the interpreter's lock at most while assembly threads want it too: a fifth of
Python's default, since answers stream on the loop (PER-02)."""


class QuietFormatter(logging.Formatter):
    """Tracebacks without the errors' messages: a library's message may quote what it choked on (I12)."""

    def formatException(self, ei: object) -> str:  # noqa: N802 - the name is logging's
        if not isinstance(ei, tuple) or ei[0] is None:
            return ""
        lines = [f"{ei[0].__module__}.{ei[0].__qualname__}"]
        trace = ei[2]
        while trace is not None:
            code = trace.tb_frame.f_code
            lines.append(f"  {code.co_filename}:{trace.tb_lineno} in {code.co_qualname}")
            trace = trace.tb_next
        return "\n".join(lines)


def bind(host: str, port: int) -> socket.socket:
    """A bound TCP socket; raises BadSettings naming the cure."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise BadSettings(f"--listen {host}:{port}: {error.strerror}: give an address of this machine") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()  # so that a second gateway on the same port fails here, not when it begins to serve
    except OSError as error:
        listener.close()
        raise BadSettings(
            f"--listen {host}:{port}: {error.strerror}: choose another port, or 0 for any free one"
        ) from None
    return listener


def base_address(listener: socket.socket, scheme: str = "http") -> str:
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def write_address(path: Path, address: str) -> None:
    """Write ``address`` so that a reader finds all of it or nothing; raises BadSettings."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(f"{address}\n")
        partial.replace(path)
    except OSError as error:
        raise BadSettings(f"--address-file {path}: {error.strerror}: name a file in a writable folder") from None


async def _serve(settings: Settings) -> None:
    listener = bind(settings.host, settings.port)
    gateway = Gateway(settings, listener)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, gateway.stop)
    loop.add_signal_handler(signal.SIGHUP, gateway.reload)
    address = base_address(listener, "http" if settings.tls is None else "https")
    log.info("listening on %s", address)
    if settings.address_file is not None:
        write_address(settings.address_file, address)
    await gateway.run()


def main() -> int:
    """Run until SIGTERM or SIGINT. Exit status 2: a setting is off; 1: the gateway cannot go on."""
    try:
        settings = parse()
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(QuietFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logging.basicConfig(level=settings.log_level, handlers=[handler])
        sys.setswitchinterval(SWITCH_S)
        asyncio.run(_serve(settings))
    except Superseded as error:
        log.error("another boot of this member has taken over: %s", error.message)
        return 1
    except KvgroveError as error:
        sys.stderr.write(f"kvgrove-gateway: error: {error.message}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
