"""Many daemons without engines in one process, for tests of size: real links, real leases, nothing on disk but keys.

``python simulated_nodes.py CONTROL FOLDER LINK_KEYS NAME...`` is one member for each NAME until SIGTERM. Each does what
`light_daemon` does, but remembers nothing over a restart and tells nothing but what the operator hears.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import zmq.asyncio
from light_daemon import LightDaemon

from kvgrove_link.link_keys import DirectoryKeys, LinkKeys
from kvgrove_link.member import MemberLink
from kvgrove_protocol.control import DAEMON, NamespacePlan, NamespaceReport, NodePlan, NodeReport


class SimulatedNode(LightDaemon):
    """Its report is made once for each plan: a hundred of these share two cores with what is measured."""

    def __init__(self, member: str, folder: Path) -> None:
        super().__init__(member, "tcp://127.0.0.1:1", folder / member, "")
        self._report: NodeReport | None = None
        self._said: dict[str, tuple[NamespacePlan, NamespaceReport]] = {}

    def namespace_report(self, namespace: NamespacePlan, generations: dict[str, bytes]) -> NamespaceReport:
        """What a plan does not change is the same object in the next one."""
        known = self._said.get(namespace.uid)
        if known is None or known[0] is not namespace or namespace.generations:
            known = self._said[namespace.uid] = namespace, super().namespace_report(namespace, generations)
        return known[1]

    def apply(self, plan: NodePlan) -> None:
        super().apply(plan)
        self._report = None

    def report(self, report_id: int) -> NodeReport:
        if self._report is None:
            self._report = super().report(report_id)
        return NodeReport(
            report_id=report_id,
            applied=self._report.applied,
            models=self._report.models,
            namespaces=self._report.namespaces,
            receipts=self._report.receipts,
        )

    def _write(self, name: str, content: object) -> None:
        pass


async def serve(control: str, folder: Path, keys: LinkKeys, members: list[str]) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with zmq.asyncio.Context() as context:
        links = []
        for member in members:
            node = SimulatedNode(member, folder)
            links.append(
                MemberLink(
                    context,
                    control,
                    node.hello,
                    on_plan=node.apply,
                    report=node.report,
                    leases=node.leases,
                    keys=keys,
                )
            )
        running = [asyncio.create_task(link.run()) for link in links]
        await stop.wait()
        await asyncio.gather(*(link.close() for link in links))
        await asyncio.gather(*running)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], Path(sys.argv[2]), DirectoryKeys(Path(sys.argv[3]), DAEMON), sys.argv[4:]))
