"""Erasures on a real node: bytes looked for in its shared memory and on its disk, streams under way, SIGKILL (I8)."""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from node_rig import Rig, running

from kvgrove_daemon.cache.segments import SHM, remove_dead_segments
from kvgrove_operator.verification import genuine
from kvgrove_protocol.control import ErasurePlan, ModelPlan, NamespacePlan
from kvgrove_protocol.data import Done, Generate, Started, Token
from kvgrove_protocol.fence import Fence
from kvgrove_protocol.identity import Caller, Purge, contributor
from kvgrove_protocol.reasons import MissReason
from kvgrove_protocol.receipts import EraseOutcome, Place, Receipt, seal_of

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

MEMBER = "erase-node"
OLD, NEW, PSEUDONYMS = b"o" * 32, b"n" * 32, b"p" * 32
NAMESPACE = NamespacePlan(
    uid="uid-1",
    name="team/support",
    model="tiny",
    purge=Purge(1, b"n" * 16),
    fence=Fence(1, 1, 1),
    lease_seconds=20.0,
    secret=OLD,
    pseudonym_key=PSEUDONYMS,
)
PREFIX = 96


def tokens(count: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(300, 1000) for _ in range(count)]


def packed(values: list[int]) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def erasing(user: str | None = "jane", tenant: str = "acme") -> NamespacePlan:
    """The namespace with an erasure under way, as the planner would have it."""
    who = contributor(PSEUDONYMS, tenant, user)
    erasure = ErasurePlan(id="e1", epoch=1, tenant=who.tenant, user=who.user)
    return msgspec.structs.replace(NAMESPACE, fence=Fence(1, 2, 1), secret=NEW, former_secret=OLD, erasures=[erasure])


@dataclass
class Node:
    """A daemon with the state directory ``root``, serving `NAMESPACE`."""

    rig: Rig
    model: ModelPlan
    root: Path

    @classmethod
    def serving(cls, rig: Rig, model: Path, root: Path, namespace: NamespacePlan = NAMESPACE) -> Node:
        plan = ModelPlan(name="tiny", path=str(model), pool_bytes={"host": 8 << 20, "disk": 64 << 20})
        rig.issue([plan], [namespace])
        named = rig.name_generation(plan)
        rig.issue([named], [namespace])
        rig.connect()
        node = cls(rig, named, root)
        node.leased(namespace)
        return node

    def leased(self, namespace: NamespacePlan) -> None:
        for _ in range(400):
            answer = self.rig.ask(self.rig.request(namespace, self.model, [1], max_new_tokens=1))
            if answer.done is not None and MissReason.CONTROL_PLANE_LOST not in answer.done.usage.missed:
                return
            self.rig.play(0.05)
        raise AssertionError("no lease")

    def request(
        self, namespace: NamespacePlan, user: str, own: list[int], *, tenant: str = "acme", max_new_tokens: int = 2
    ) -> Generate:
        """The declared prefix, then what the user says."""
        request = self.rig.request(
            namespace, self.model, tokens(PREFIX, 1) + own, shared=PREFIX, max_new_tokens=max_new_tokens
        )
        return msgspec.structs.replace(request, caller=Caller(tenant=tenant, user=user))

    def ask(self, namespace: NamespacePlan, user: str, own: list[int], *, tenant: str = "acme") -> int:
        """Answers the tokens that were reused."""
        answer = self.rig.ask(self.request(namespace, user, own, tenant=tenant))
        assert answer.done is not None, answer
        return answer.done.usage.reused

    def erase(self, namespace: NamespacePlan) -> None:
        self.rig.issue([self.model], [namespace])

    def receipt(self) -> Receipt | None:
        receipts = self.rig.report.receipts if self.rig.report is not None else []
        return receipts[0] if receipts else None

    def until_proven(self) -> Receipt:
        def proven() -> bool:
            receipt = self.receipt()
            return receipt is not None and receipt.outcome is EraseOutcome.PROVEN

        self.rig.until(proven)
        receipt = self.receipt()
        assert receipt is not None
        assert self.rig.hello is not None
        assert genuine(receipt, self.rig.hello)
        return receipt

    # -- looking at bytes ----------------------------------------------------------------------------------------------

    def memory(self) -> bytes:
        assert self.rig.hello is not None
        return b"".join(path.read_bytes() for path in sorted(SHM.glob(f"kvgrove-{MEMBER}-*")))

    def disk(self) -> bytes:
        return b"".join(path.read_bytes() for path in sorted(self.root.rglob("*")) if path.is_file())

    def canaries(self, before: bytes, after: bytes | None = None) -> list[bytes]:
        """Pieces of the KV that were written from ``before`` to ``after`` (None: now), and that nobody else's KV holds.

        A token's values in the first layer are the same wherever it stands.
        """
        after = self.memory() if after is None else after
        size = 64
        changed = [at for at in range(0, len(after), size) if after[at : at + size] != before[at : at + size]]
        pieces = [after[at : at + size] for at in changed[:: max(1, len(changed) // 128)]]
        found = [piece for piece in pieces if piece.count(0) < size // 4 and piece not in before]
        assert len(found) > 8
        return found

    def nothing_of(self, canaries: list[bytes], said: list[int]) -> None:
        memory, disk = self.memory(), self.disk()
        assert not any(canary in memory for canary in canaries)
        assert not any(canary in disk for canary in canaries)
        for at in range(0, len(said) - 8, 8):
            assert packed(said[at : at + 8]) not in memory
            assert packed(said[at : at + 8]) not in disk


@pytest.fixture(scope="module")
def model(tiny_model: Callable[[str], Path]) -> Path:
    return tiny_model("llama")


JANE_SAYS, JOE_SAYS = tokens(128, 2), tokens(128, 3)


def test_i8_of_two_users_of_one_tenant_one_is_erased_and_the_other_still_hits(tmp_path: Path, model: Path) -> None:
    with running(tmp_path, MEMBER) as rig:
        node = Node.serving(rig, model, tmp_path)
        node.ask(NAMESPACE, "joe", JOE_SAYS)
        before = node.memory()
        node.ask(NAMESPACE, "jane", JANE_SAYS)
        canaries = node.canaries(before)
        assert node.ask(NAMESPACE, "jane", JANE_SAYS) == PREFIX + 96
        for _ in range(2):
            node.ask(NAMESPACE, "joe", JOE_SAYS)
        after = erasing()
        node.erase(after)
        receipt = node.until_proven()
        assert receipt.seal == seal_of(NEW)
        assert receipt.places[Place.HOST] > 0
        assert receipt.pending == {}
        node.nothing_of(canaries, JANE_SAYS)
        node.leased(after)
        assert node.ask(after, "joe", JOE_SAYS) == PREFIX + 96
        assert node.ask(after, "jane", JANE_SAYS) == PREFIX  # the declared text stays, hers is new


def test_i8_a_tenant_goes_with_all_its_users_and_others_stay(tmp_path: Path, model: Path) -> None:
    with running(tmp_path, MEMBER) as rig:
        node = Node.serving(rig, model, tmp_path)
        for tenant, user, said in (("acme", "jane", JANE_SAYS), ("globex", "ann", JOE_SAYS)):
            node.ask(NAMESPACE, user, said, tenant=tenant)
        after = erasing(user=None)
        node.erase(after)
        node.until_proven()
        node.leased(after)
        assert node.ask(after, "jane", JANE_SAYS) == PREFIX
        assert node.ask(after, "ann", JOE_SAYS, tenant="globex") == PREFIX + 96


def test_i8_a_deleted_namespace_leaves_nothing(tmp_path: Path, model: Path) -> None:
    with running(tmp_path, MEMBER) as rig:
        node = Node.serving(rig, model, tmp_path)
        before = node.memory()
        node.ask(NAMESPACE, "jane", JANE_SAYS)
        canaries = node.canaries(before)
        rig.issue([node.model], [], erase=[NAMESPACE.uid])
        assert node.until_proven().erasure == ""
        node.nothing_of(canaries, JANE_SAYS)


def test_i8_an_answer_under_way_is_completed_and_leaves_nothing(tmp_path: Path, model: Path) -> None:
    with running(tmp_path, MEMBER) as rig:
        node = Node.serving(rig, model, tmp_path)
        node.ask(NAMESPACE, "joe", JOE_SAYS)  # the declared text is there, and stays
        before = node.memory()
        streaming = node.request(NAMESPACE, "jane", JANE_SAYS, max_new_tokens=1500)
        rig.send(streaming)
        while not isinstance(rig.receive(), Token):
            pass
        meanwhile = node.memory()
        after = erasing()
        node.erase(after)
        rig.until(lambda: node.receipt() is not None)
        receipt = node.receipt()
        assert receipt is not None
        assert receipt.outcome is EraseOutcome.PENDING
        assert receipt.pending[Place.HOST] > 0
        received = 0
        while not isinstance(message := rig.receive(), Done):
            received += isinstance(message, Token)
            assert not isinstance(message, Started)
        assert received > 0
        node.until_proven()
        node.nothing_of(node.canaries(before, meanwhile), JANE_SAYS)
        node.leased(after)
        assert node.ask(after, "jane", JANE_SAYS) == PREFIX


@pytest.mark.parametrize("moment", ["at once", "soon", "later", "proven"])
def test_i8_a_node_that_is_killed_comes_back_and_ends_proven(tmp_path: Path, model: Path, moment: str) -> None:
    after = erasing()
    try:
        with suppress(AssertionError), running(tmp_path, MEMBER) as rig:
            node = Node.serving(rig, model, tmp_path)
            before = node.memory()
            for _ in range(2):
                node.ask(NAMESPACE, "jane", JANE_SAYS)
            canaries = node.canaries(before)
            if moment == "proven":
                node.erase(after)
                node.until_proven()
            else:
                assert rig.plan is not None
                rig.plan = msgspec.structs.replace(
                    rig.plan, revision=msgspec.structs.replace(rig.plan.revision, n=99), namespaces=[after]
                )
                rig.tell(rig.plan)
                time.sleep({"at once": 0.0, "soon": 0.01, "later": 0.1}[moment])
            rig.process.kill()
            rig.process.wait()
        with running(tmp_path, MEMBER) as rig:
            node = Node.serving(rig, model, tmp_path, after)
            receipt = node.until_proven()
            assert receipt.places[Place.DEAD_BOOTS] == 1
            node.nothing_of(canaries, JANE_SAYS)
            assert node.ask(after, "jane", JANE_SAYS) in (0, PREFIX)
    finally:
        remove_dead_segments(MEMBER, "")
