"""``python -m kvgrove_operator``: waits to lead, leads, and ends when it may not lead any more."""

import asyncio
import logging
import os
import signal
import socket
import sys
from dataclasses import replace
from uuid import uuid4

import zmq.asyncio
from kubernetes import config
from kubernetes.client import ApiClient, Configuration
from prometheus_client import start_http_server

from kvgrove_link.clock import boottime
from kvgrove_operator.fleet_memory import Outdated
from kvgrove_operator.kube import CALLS_AT_ONCE, Kube
from kvgrove_operator.leadership import Leadership
from kvgrove_operator.metrics import ProcessMetrics
from kvgrove_operator.probes import Probes
from kvgrove_operator.session import Session
from kvgrove_operator.settings import Settings, parse
from kvgrove_protocol.errors import KvgroveError

log = logging.getLogger("kvgrove_operator")

_RESYNCS_MISSED = 3
"""Without a plan, or without a look at who leads, for this many resyncs the operator is as good as dead, and is to be
restarted."""


async def _run(settings: Settings) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    configuration = Configuration.get_default_copy()
    configuration.connection_pool_maxsize = CALLS_AT_ONCE  # a connection that is thrown away costs a TLS handshake
    kube = Kube(ApiClient(configuration))
    context = zmq.asyncio.Context()
    leadership = Leadership(kube, settings.own_namespace, settings.lease_name, settings.identity, settings.leader)
    sessions: list[Session] = []

    def alive() -> bool:
        done = sessions[-1].planned_at if sessions else leadership.tried_at
        return done is None or boottime() - done < _RESYNCS_MISSED * settings.resync

    metrics = ProcessMetrics(lambda: boottime() < leadership.until)
    if settings.metrics is not None:
        start_http_server(settings.metrics[1], settings.metrics[0], registry=metrics.registry)  # ends with the process
    server = None
    if settings.probes is not None:
        server = await Probes(alive, lambda: leadership.ready(boottime())).serve(*settings.probes)
    try:
        if not await _acquire(leadership, stop):
            return
        while True:
            sessions[:] = [Session(settings, kube, leadership, context, metrics)]
            try:
                await _unwrapped(sessions[-1], stop)
            except Outdated as error:
                log.warning("%s: going on above it", error.message)
                await leadership.raise_term(error.term)
            else:
                return
    finally:
        if server is not None:
            server.close()
        await leadership.release()
        context.destroy(linger=0)
        kube.close()


async def _acquire(leadership: Leadership, stop: asyncio.Event) -> bool:
    """Whether this process leads; False: it was told to end first."""
    acquiring, stopping = asyncio.create_task(leadership.acquire()), asyncio.create_task(stop.wait())
    await asyncio.wait((acquiring, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not acquiring.done():
        acquiring.cancel()
        return False
    acquiring.result()
    return True


async def _unwrapped(session: Session, stop: asyncio.Event) -> None:
    """The first of our errors that ended the session, as itself."""
    try:
        await session.run(stop)
    except* KvgroveError as group:
        raise _first(group) from None


def _first(group: BaseExceptionGroup[KvgroveError]) -> KvgroveError:
    found = group.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found


def main() -> int:
    """Run until SIGTERM or SIGINT. Exit status 1: another process leads, or the API server refuses what is needed."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("kopf").setLevel(logging.WARNING)  # it tells of every event
    settings = parse()
    if settings.verbose:
        logging.getLogger("kvgrove_operator").setLevel(logging.DEBUG)
    if not settings.identity:
        settings = replace(settings, identity=f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}")
    try:
        config.load_config()  # type: ignore[no-untyped-call]
    except config.ConfigException as error:
        print(f"kvgrove_operator: no cluster: {error}; set KUBECONFIG", file=sys.stderr)  # noqa: T201 - what people see
        return 2
    try:
        asyncio.run(_run(settings))
    except KvgroveError as error:
        log.error("%s", error.message)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
