"""``python -m kvgrove_daemon``: one node."""

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

# Before torch loads OpenMP: idle threads must sleep, not spin, or two daemons on one machine stall each other for
# seconds. Whoever has the machine alone may set ACTIVE.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from kvgrove_daemon.node import Node
from kvgrove_daemon.settings import Settings, parse
from kvgrove_link.errors import Superseded
from kvgrove_protocol.errors import KvgroveError

log = logging.getLogger("kvgrove_daemon")


async def _serve(settings: Settings) -> None:
    node = Node(settings)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, node.stop)
    if settings.metrics is not None:
        port = node.metrics.serve(*settings.metrics, settings.metrics_tls)
        scheme = "http" if settings.metrics_tls is None else "https"
        address = f"{scheme}://{settings.metrics[0]}:{port}/metrics"
        log.info("metrics on %s", address)
        if settings.metrics_address_file is not None:
            _write_whole(settings.metrics_address_file, f"{address}\n")
    log.info("node %s, boot %s, listening on %s", settings.member, node.boot, node.address)
    await node.run()


def _write_whole(path: Path, text: str) -> None:
    """A reader finds all of it or nothing."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(text)
    partial.replace(path)


def main() -> int:
    """Run until SIGTERM or SIGINT. Exit status 2: a setting is off; 1: the node cannot go on."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    settings = parse()
    try:
        asyncio.run(_serve(settings))
    except Superseded as error:
        log.error("another boot of this member has taken over: %s", error)
        return 1
    except KvgroveError as error:
        print(f"kvgrove_daemon: {error.message}", file=sys.stderr)  # noqa: T201 - the one line people see
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
