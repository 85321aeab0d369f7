"""One real daemon, asked directly: reuse, freshness, isolation, bad frames, cancel, restart."""

from __future__ import annotations

import math
import pickle
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest
from node_rig import Rig, running

from kvgrove_protocol.chain import DocumentRef
from kvgrove_protocol.control import DocumentPlan, ModelPlan, NamespacePlan, PrefixPlan
from kvgrove_protocol.data import Cancel, Ping, Pong, Sampling, Subscribe
from kvgrove_protocol.events import EventBatch, SnapshotChunk, Stored, split_keys
from kvgrove_protocol.fence import Fence
from kvgrove_protocol.identity import Purge
from kvgrove_protocol.reasons import MissReason

pytestmark = pytest.mark.e2e

NAMESPACE = NamespacePlan(
    uid="uid-1", name="team/support", model="tiny", purge=Purge(1, b"n" * 16), fence=Fence(1, 1, 1), lease_seconds=20.0
)
DIGEST = sha256(b"v1").digest()
DOCUMENT = DocumentPlan(name="handbook", version="v1", body=DIGEST, epoch=1)


def tokens(count: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(300, 1000) for _ in range(count)]


@dataclass
class Served:
    rig: Rig
    model: ModelPlan

    def issue(self, namespace: NamespacePlan) -> None:
        self.rig.issue([self.model], [namespace])

    def leased(self, namespace: NamespacePlan) -> None:
        """Wait until the grant that answers the newest report has arrived: ask until the node may reuse."""
        for _ in range(200):
            answer = self.rig.ask(self.rig.request(namespace, self.model, [1], max_new_tokens=1))
            if answer.done is not None and MissReason.CONTROL_PLANE_LOST not in answer.done.usage.missed:
                return
            self.rig.play(0.05)
        raise AssertionError("no lease")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, tiny_model: Callable[[str], Path]) -> Iterator[Served]:
    with running(tmp_path_factory.mktemp("node")) as rig:
        model = ModelPlan(name="tiny", path=str(tiny_model("llama")), pool_bytes={"host": 64 << 20})
        rig.issue([model], [])
        named = rig.name_generation(model)
        rig.issue([named], [NAMESPACE])
        rig.connect()
        yield Served(rig, named)


@pytest.fixture(autouse=True)
def at_the_first_fence(served: Served, request: pytest.FixtureRequest) -> NamespacePlan:
    """Each test has a namespace of its own, so that none meets another's blocks."""
    name = request.node.name
    namespace = msgspec.structs.replace(NAMESPACE, uid=f"uid-{name}", name=f"team/{name[:40]}")
    served.issue(namespace)
    served.leased(namespace)
    return namespace


def test_a_shared_prefix_is_reused_across_tenants_and_private_text_is_not(
    served: Served, at_the_first_fence: NamespacePlan
) -> None:
    rig, namespace = served.rig, at_the_first_fence
    prefix, question = tokens(96, 1), tokens(70, 2)
    first = rig.ask(rig.request(namespace, served.model, prefix + question, shared=96))
    again = rig.ask(rig.request(namespace, served.model, prefix + question, shared=96))
    other = rig.ask(rig.request(namespace, served.model, prefix + question, shared=96, tenant="other"))
    assert first.done is not None
    assert again.done is not None
    assert other.done is not None
    assert first.done.usage.reused == 0
    assert again.done.usage.reused == 160
    assert other.done.usage.reused == 96  # the declared prefix; the question is each tenant's own
    assert again.token_ids == first.token_ids == other.token_ids
    for answer in (first, again, other):
        usage = answer.done.usage  # type: ignore[union-attr]
        assert usage.reused + sum(usage.missed.values()) == usage.prompt == 166  # I10
    assert other.done.usage.missed == {MissReason.NEW: 64, MissReason.PARTIAL_BLOCK: 6}


def test_i3_fresh_a_changed_document_is_never_met_again(served: Served, at_the_first_fence: NamespacePlan) -> None:
    rig = served.rig
    prompt = tokens(40, 3) + tokens(64, 4) + tokens(20, 5)
    reused = []
    for epoch, version in ((1, "v1"), (2, "v2"), (3, "v1")):
        digest = sha256(version.encode()).digest()
        planned = DocumentPlan(name="handbook", version=version, body=digest, epoch=epoch)
        namespace = msgspec.structs.replace(at_the_first_fence, fence=Fence(1, epoch, 1), documents=[planned])
        served.issue(namespace)
        served.leased(namespace)
        reference = DocumentRef("handbook", digest, epoch)
        ask = rig.request(namespace, served.model, prompt, shared=40, document=(64, reference))
        answers = [rig.ask(ask), rig.ask(msgspec.structs.replace(ask, request_id=f"again-{epoch}"))]
        reused.append([answer.done.usage.reused for answer in answers if answer.done is not None])
        if epoch > 1:
            assert answers[0].done is not None
            assert MissReason.DOCUMENT_CHANGED in answers[0].done.usage.missed
    assert reused == [[0, 96], [32, 96], [32, 96]]  # the block before the document stays shared, the rest is new


def test_i3_fresh_a_request_behind_the_fence_is_refused_retryably(
    served: Served, at_the_first_fence: NamespacePlan
) -> None:
    rig = served.rig
    newer = msgspec.structs.replace(at_the_first_fence, fence=Fence(2, 1, 1), purge=Purge(2, b"m" * 16))
    served.issue(newer)
    served.leased(newer)
    late = rig.ask(rig.request(at_the_first_fence, served.model, tokens(64, 6)))
    assert late.error is not None
    assert (late.error.code, late.error.retryable) == ("stale_fence", True)


def test_i3_fresh_a_purge_makes_old_blocks_unreadable_and_says_so(
    served: Served, at_the_first_fence: NamespacePlan
) -> None:
    rig = served.rig
    prompt = tokens(80, 7)
    rig.ask(rig.request(at_the_first_fence, served.model, prompt))
    purged = msgspec.structs.replace(at_the_first_fence, fence=Fence(2, 1, 1), purge=Purge(2, b"m" * 16))
    served.issue(purged)
    served.leased(purged)
    after = rig.ask(rig.request(purged, served.model, prompt))
    assert after.done is not None
    assert after.done.usage.reused == 0
    assert after.done.usage.missed[MissReason.PURGED] == 64


def test_i3_fresh_without_a_lease_the_node_answers_cold_and_stores_nothing(
    served: Served, at_the_first_fence: NamespacePlan
) -> None:
    rig = served.rig
    short = msgspec.structs.replace(at_the_first_fence, uid="uid-short-lease", lease_seconds=0.2)
    rig.grant_leases = False
    served.issue(short)
    prompt = tokens(80, 8)
    cold = [rig.ask(rig.request(short, served.model, prompt)) for _ in range(2)]
    rig.grant_leases = True
    for answer in cold:
        assert answer.done is not None
        assert answer.done.usage.missed == {MissReason.CONTROL_PLANE_LOST: 80}
    closed = msgspec.structs.replace(short, uid="uid-closed", fail_closed=True)
    rig.grant_leases = False
    served.issue(closed)
    refused = rig.ask(rig.request(closed, served.model, prompt))
    rig.grant_leases = True
    assert refused.error is not None
    assert refused.error.code == "freshness_lease_expired"


def test_a_gateway_that_knows_more_is_served_cold(served: Served, at_the_first_fence: NamespacePlan) -> None:
    rig = served.rig
    ahead = msgspec.structs.replace(at_the_first_fence, fence=Fence(1, 2, 1))
    answer = rig.ask(rig.request(ahead, served.model, tokens(80, 9)))
    assert answer.done is not None
    assert answer.done.usage.missed == {MissReason.FENCE_NEWER: 80}


def test_declared_prefixes_are_warmed_under_the_keys_that_requests_have(
    served: Served, at_the_first_fence: NamespacePlan
) -> None:
    rig = served.rig
    text = "Answer shortly and truthfully. " * 60
    digest = sha256(text.encode()).digest()
    rig.bodies[digest] = text.encode()
    warm = msgspec.structs.replace(
        at_the_first_fence, prefixes=[PrefixPlan(name="p", version="1", body=digest)], warm=["p"]
    )
    served.issue(warm)

    def warmed() -> bool:
        assert rig.report is not None
        found = [report for report in rig.report.namespaces if report.uid == warm.uid]
        return bool(found) and found[0].warm_wanted > 0 and found[0].warm_ready == found[0].warm_wanted

    rig.until(warmed)


@pytest.mark.parametrize(
    "frame",
    [b"", b"\xff" * 100, pickle.dumps({"type": "ping"}), msgspec.msgpack.encode({"type": "ping", "nonce": "x"})],
)
def test_iso_13_malformed_frames_are_dropped_and_the_daemon_lives(served: Served, frame: bytes) -> None:
    assert served.rig.data is not None
    served.rig.data.send(frame)
    served.rig.send(Ping(nonce=7))
    while not isinstance(message := served.rig.receive(), Pong):
        pass
    assert message.nonce == 7


def test_prompts_that_cannot_be_are_refused_by_field(served: Served, at_the_first_fence: NamespacePlan) -> None:
    rig, good = served.rig, served.rig.request(at_the_first_fence, served.model, tokens(8, 10))
    bad = {
        "tokens": msgspec.structs.replace(good, request_id="b1", tokens=good.tokens[:-1]),
        "vocabulary": msgspec.structs.replace(good, request_id="b2", tokens=b"\xff" * 32),
        "spans": msgspec.structs.replace(good, request_id="b3", spans=[]),
        "temperature": msgspec.structs.replace(good, request_id="b4", sampling=Sampling(temperature=math.nan)),
    }
    for word, request in bad.items():
        answer = rig.ask(request)
        assert answer.error is not None
        assert (answer.error.code, answer.error.retryable) == ("malformed", False)
        assert word in answer.error.message
    long = rig.ask(rig.request(at_the_first_fence, served.model, tokens(2048, 11)))
    assert long.error is not None
    assert long.error.code == "context_length_exceeded"


@pytest.mark.parametrize("sampling", [Sampling(temperature=1e-300), Sampling(top_p=1e-300)])
def test_numbers_beneath_float32_are_answered(
    served: Served, at_the_first_fence: NamespacePlan, sampling: Sampling
) -> None:
    request = served.rig.request(at_the_first_fence, served.model, tokens(8, 14))
    assert served.rig.ask(msgspec.structs.replace(request, sampling=sampling)).done is not None


def test_a_cancelled_request_ends_and_leaves_the_node_free(served: Served, at_the_first_fence: NamespacePlan) -> None:
    rig = served.rig
    endless = rig.request(at_the_first_fence, served.model, tokens(40, 12), max_new_tokens=1900)
    rig.send(endless)
    rig.send(Cancel(request_id=endless.request_id))
    after = rig.ask(rig.request(at_the_first_fence, served.model, tokens(40, 13)))
    assert after.done is not None
    rig.send(Cancel(request_id="never-was"))


def test_residency_is_followed_by_snapshot_and_batches(served: Served, at_the_first_fence: NamespacePlan) -> None:
    rig = served.rig
    prompt = tokens(100, 14)
    rig.ask(rig.request(at_the_first_fence, served.model, prompt))
    rig.send(Subscribe())
    snapshot: set[bytes] = set()
    while True:
        message = rig.receive()
        if isinstance(message, SnapshotChunk):
            snapshot.update(split_keys(message.keys))
            if message.last:
                break
    assert len(snapshot) >= 3
    rig.ask(rig.request(at_the_first_fence, served.model, tokens(100, 15)))
    events = [event for batch in rig.batches for event in batch.events]
    for _ in range(50):
        stored = {key for event in events if isinstance(event, Stored) for key in split_keys(event.keys)}
        if len(stored) >= 3:
            break
        message = rig.receive()
        events += message.events if isinstance(message, EventBatch) else []
    assert len(stored) == 3
    assert not stored & snapshot
    assert [batch.seq for batch in rig.batches] == sorted({batch.seq for batch in rig.batches})


def test_i3_fresh_a_restarted_node_remembers_the_highest_purge_counter(
    tmp_path: Path, tiny_model: Callable[[str], Path]
) -> None:
    model = ModelPlan(name="tiny", path=str(tiny_model("llama")), pool_bytes={"host": 16 << 20})
    with running(tmp_path, "node-1") as rig:
        rig.issue([model], [msgspec.structs.replace(NAMESPACE, purge=Purge(7, b"x"), fence=Fence(7, 1, 1))])
    with running(tmp_path, "node-1") as rig:
        rig.until(lambda: rig.hello is not None)
        assert rig.hello is not None
        assert rig.hello.epochs_seen == {NAMESPACE.uid: 7}
        rig.issue([model], [NAMESPACE])  # a control plane that lost its memory
        assert rig.report is not None
        assert [(report.code, report.purge_counter) for report in rig.report.namespaces] == [("PurgeCounterFell", 7)]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"path": "/no/such/model"}, "missing_model"),
        ({"pool_bytes": {"host": 1000}}, "pool_too_small"),
        ({"pool_bytes": {"host": 1 << 50}}, "pool_no_room"),
    ],
)
def test_a_model_that_cannot_be_loaded_is_reported_with_its_cure(
    served: Served, tiny_model: Callable[[str], Path], change: dict[str, object], code: str
) -> None:
    rig = served.rig
    path = str(tiny_model("qwen3"))
    bad = msgspec.structs.replace(ModelPlan(name="bad", path=path, pool_bytes={"host": 16 << 20}), **change)
    rig.issue([served.model, bad], [])

    def failed() -> bool:
        assert rig.report is not None
        return any(report.name == "bad" and report.state == "failed" for report in rig.report.models)

    rig.until(failed)
    assert rig.report is not None
    report = next(report for report in rig.report.models if report.name == "bad")
    assert report.code == code
    assert report.message
