"""A daemon without an engine, for tests of the control plane: a real link, real leases, signed receipts, no pool.

``python light_daemon.py`` takes the real one's options. It says that every model is ready and every prefix warm, keeps
over restarts what a daemon keeps (its key, the highest purge counters, the namespaces it held), and tells tests what
it knows in ``light.json`` of its state directory.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
from pathlib import Path

import zmq.asyncio

from kvgrove_link.clock import boottime
from kvgrove_link.errors import Superseded
from kvgrove_link.frames import new_boot_id
from kvgrove_link.leases import LeaseTable
from kvgrove_link.link_keys import LinkKeys
from kvgrove_link.member import MemberLink
from kvgrove_link.member_key import MemberKey
from kvgrove_link.security import add_options, link_keys
from kvgrove_protocol.control import (
    DAEMON,
    NO_REVISION,
    GenerationReport,
    Hello,
    ModelReport,
    NamespacePlan,
    NamespaceReport,
    NodePlan,
    NodeReport,
)
from kvgrove_protocol.identity import GenerationInputs
from kvgrove_protocol.receipts import EraseOutcome, Place, Receipt, seal_of

TELL_SECONDS = 0.2


def inputs_of(path: str) -> GenerationInputs:
    """What a model at ``path`` is said to be: other paths, other weights."""
    digest = "sha256:" + path.encode().hex().ljust(64, "0")[-64:]
    same = "sha256:" + "1" * 64
    return GenerationInputs(weights=digest, tokenizer=same, chat_template=same, kv_dtype="float32", block_size=32)


class LightDaemon:
    def __init__(self, member: str, address: str, state: Path, pod_uid: str, placement: str = "") -> None:
        self.member, self.address, self.state = member, address, state
        self.pod_uid, self.placement = pod_uid, placement
        self.boot, self.leases = new_boot_id(), LeaseTable()
        state.mkdir(parents=True, exist_ok=True)
        self.key = MemberKey.load_or_make(state / "member.key")
        kept = json.loads((state / "kept.json").read_text()) if (state / "kept.json").exists() else {}
        self.counters: dict[str, int] = kept.get("counters", {})
        self.held: list[str] = kept.get("held", [])
        self.plan: NodePlan | None = None
        self.receipts: list[Receipt] = []

    def hello(self) -> Hello:
        return Hello(
            member=self.member,
            role=DAEMON,
            boot=self.boot,
            pod_uid=self.pod_uid,
            placement=self.placement,
            address=self.address,
            epochs_seen=self.counters,
            namespace_uids=self.held,
            public_key=self.key.public,
        )

    def apply(self, plan: NodePlan) -> None:
        known = {namespace.uid: namespace for namespace in plan.namespaces}
        gone = [*plan.erase_uids, *(uid for uid in self.held if uid not in known)]
        self.receipts = [self._receipt(uid, "", b"") for uid in dict.fromkeys(gone)]
        self.receipts += [
            self._receipt(namespace.uid, erasure.id, seal_of(namespace.secret))
            for namespace in plan.namespaces
            for erasure in namespace.erasures
        ]
        self.held = [*known]
        for uid, namespace in known.items():
            self.counters[uid] = max(self.counters.get(uid, 0), namespace.purge.counter)
        self._write("kept.json", {"counters": self.counters, "held": self.held})
        self.plan = plan

    def report(self, report_id: int) -> NodeReport:
        plan = self.plan
        if plan is None:
            return NodeReport(report_id=report_id, applied=NO_REVISION)
        generations = {model.name: model.generation for model in plan.models if model.generation}
        models = [ModelReport(name=model.name, state="ready", inputs=inputs_of(model.path)) for model in plan.models]
        return NodeReport(
            report_id=report_id,
            applied=plan.revision,
            models=models,
            namespaces=[self.namespace_report(namespace, generations) for namespace in plan.namespaces],
            receipts=self.receipts,
        )

    def namespace_report(self, namespace: NamespacePlan, generations: dict[str, bytes]) -> NamespaceReport:
        """``generations``: of the models that are named."""
        blocks = len(namespace.warm)
        beside = [namespace.model, *(each.model for each in namespace.generations)] if namespace.generations else []
        named = [generations[name] for name in beside if name in generations]
        return NamespaceReport(
            uid=namespace.uid,
            fence=namespace.fence,
            purge_counter=namespace.purge.counter,
            warm_ready=blocks,
            warm_wanted=blocks,
            coming=[document.epoch for document in namespace.coming],
            generations=[
                GenerationReport(generation=each, warm_ready=blocks, warm_wanted=blocks, warm_resolved=True)
                for each in named
            ],
        )

    def tell(self) -> None:
        """For tests."""
        now, plan = boottime(), self.plan
        revision = plan.revision if plan is not None else NO_REVISION
        self._write(
            "light.json",
            {
                "boot": self.boot,
                "revision": [revision.term, revision.n],
                "leased": [uid for uid in self.held if self.leases.valid(uid, now)],
                "fences": {
                    namespace.uid: [namespace.fence.purge, namespace.fence.documents, namespace.fence.access]
                    for namespace in (plan.namespaces if plan is not None else [])
                },
                "serving": {
                    namespace.uid: [namespace.model, *(each.model for each in namespace.generations)]
                    for namespace in (plan.namespaces if plan is not None else [])
                },
            },
        )

    def _receipt(self, uid: str, erasure: str, seal: bytes) -> Receipt:
        return self.key.sign(
            Receipt(
                uid=uid,
                erasure=erasure,
                member=self.member,
                boot=self.boot,
                outcome=EraseOutcome.PROVEN,
                places={Place.HOST: 1},
                seal=seal,
            )
        )

    def _write(self, name: str, content: object) -> None:
        draft = self.state / f"{name}.new"
        draft.write_text(json.dumps(content))
        draft.replace(self.state / name)


async def serve(daemon: LightDaemon, control: str, keys: LinkKeys | None) -> None:
    with zmq.asyncio.Context() as context:
        link = MemberLink(
            context,
            control,
            daemon.hello,
            on_plan=daemon.apply,
            report=daemon.report,
            leases=daemon.leases,
            keys=keys,
        )
        running, stop = asyncio.create_task(link.run()), asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        while not running.done() and not stop.is_set():
            daemon.tell()
            await asyncio.sleep(TELL_SECONDS)
        if not running.done():
            await link.close()
        await running


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for option in ("--member", "--control", "--listen", "--state-dir", "--pod-uid", "--placement"):
        parser.add_argument(option, required=True)
    add_options(parser)
    found = parser.parse_args()
    keys = link_keys(found.link_keys, found.plain_links, DAEMON, [("--control", found.control)])
    daemon = LightDaemon(found.member, found.listen, Path(found.state_dir), found.pod_uid, found.placement)
    try:
        asyncio.run(serve(daemon, found.control, keys))
    except Superseded:
        os._exit(1)
