"""Invalidations by the operator, of real engines behind real gateways: under load, and where a gateway is cut off."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from controlplane.plane import Plane
from gitops_rig import DOCUMENT, NAMESPACE, Story, reused, story
from operator_rig import OWN, Gateway, apply, gateway, wait_for, wait_ready
from tcp_proxy import TcpProxy

pytestmark = pytest.mark.timeout(600)

STREAMS, STREAMED = 20, 500
CUT_OFF = "gateway-remote"
POLICY = {"kvgrove": {"documents": ["policy"]}}


@dataclass(frozen=True)
class Scene:
    here: Story
    remote: Gateway
    """Its link to the operator goes through ``cable``."""
    cable: TcpProxy

    def invalidated(self, change: Callable[[], None]) -> Mapping[str, int]:
        """Makes a change; the counts of its invalidation once that is complete."""
        before = self.here.status["invalidation"]["revision"]
        change()

        def complete() -> Mapping[str, int] | None:
            status = self.here.status
            found = {each["type"]: each["status"] for each in status["conditions"]}
            done = found["InvalidationComplete"] == "True" and status["invalidation"]["revision"] > before
            return dict(status["invalidation"]) if done else None

        counts: Mapping[str, int] = wait_for(complete, "the invalidation")
        return counts


@pytest.fixture(scope="module")
def scene(control_plane_programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("engines")
    with Plane.in_folder(folder / "plane", programs=control_plane_programs) as plane, story(plane, folder) as here:
        apply(plane, "-f", "-", stdin=json.dumps(_POD))
        cable = TcpProxy(("127.0.0.1", here.op.port))
        with gateway(plane, folder / "remote", cable.port, member=CUT_OFF) as remote:
            wait_for(
                lambda: remote.chat(NAMESPACE, "Hello?", **POLICY).status_code == 200, "an answer of the other one"
            )
            yield Scene(here, remote, cable)
        cable.close()


_POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": CUT_OFF, "namespace": OWN},
    "spec": {"nodeSelector": {"kvgrove.test/is": "nowhere"}, "containers": [{"name": "gateway", "image": "none"}]},
}
"""By which the operator knows that the gateway is out of reach, and not gone for good."""


def long_question(number: int) -> str:
    return f"Of bicycle number {number}: " + "the bell does not ring, what can be done about it, and who pays? " * 6


@dataclass
class Stream:
    """One streamed answer, read by a thread of its own."""

    front: Gateway
    question: str
    begun: threading.Event = field(default_factory=threading.Event)
    text: str = ""
    finish: str = ""
    usage: dict[str, Any] = field(default_factory=dict)

    def read(self) -> None:
        body = {
            "model": NAMESPACE,
            "messages": [{"role": "user", "content": self.question}],
            "max_tokens": STREAMED,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        headers = {"Authorization": f"Bearer {self.front.secret}"}
        url = f"{self.front.address}/v1/chat/completions"
        with httpx.stream("POST", url, json=body, headers=headers, timeout=300) as answer:
            assert answer.status_code == 200
            for line in answer.iter_lines():
                data = line.removeprefix("data: ")
                if data in (line, "[DONE]"):
                    continue
                chunk = json.loads(data)
                self.usage = chunk.get("usage") or self.usage
                for choice in chunk["choices"]:
                    self.text += choice["delta"].get("content") or ""
                    self.finish = choice.get("finish_reason") or self.finish
                    self.begun.set()

    @property
    def reused(self) -> int:
        return int(self.usage["prompt_tokens_details"]["cached_tokens"])


def test_cor_03_a_purge_during_20_streams_holds_for_all_who_come_later_and_breaks_nobody_off(scene: Scene) -> None:
    here = scene.here
    questions = [long_question(number) for number in range(STREAMS)]
    for question in questions:
        here.front.chat(NAMESPACE, question)
    assert reused(here.front.chat(NAMESPACE, questions[0]).json()) > 0
    streams = [Stream(here.front, question) for question in questions]
    with ThreadPoolExecutor(STREAMS) as pool:
        reading = [pool.submit(stream.read) for stream in streams]
        for stream in streams:
            assert stream.begun.wait(120)
        counter = here.status["purge"]["counter"]
        epoch = int(here.plane.get("pcn", "bot")["spec"].get("purge", {}).get("epoch", 0)) + 1
        counts = scene.invalidated(lambda: here.git.commit(purge={"epoch": epoch}))
        under_way = [each for each in reading if not each.done()]
        later = [here.front.chat(NAMESPACE, question, max_tokens=1).json() for question in questions]
        for each in reading:
            each.result()
    # two nodes and two gateways have said that they enforce it, and nobody is left out of the count
    assert {name: counts[name] for name in ("confirmed", "expired", "gone", "pending")} == {
        "confirmed": 4,
        "expired": 0,
        "gone": 0,
        "pending": 0,
    }
    assert here.status["purge"]["counter"] == counter + 1
    assert under_way, "it was asked for under load"
    # whoever asked before goes on with what they began with, to the end
    assert all(stream.reused > 0 for stream in streams)
    assert {stream.finish for stream in streams} <= {"length", "stop"}
    # and whoever came afterwards has found nothing of it
    assert [reused(each) for each in later] == [0] * STREAMS
    assert all(each["kvgrove"]["missed"].get("purged", 0) > 0 for each in later)
    # what is in the cache now gives what the cache of before gave
    again = here.front.chat(NAMESPACE, questions[0], max_tokens=32).json()
    assert reused(again) > 0
    assert streams[0].text.startswith(again["choices"][0]["message"]["content"])


def test_i3_a_gateway_that_is_cut_off_is_waited_for_until_it_can_serve_nothing_old_and_serves_nothing_old(
    scene: Scene,
) -> None:
    here, remote = scene.here, scene.remote
    private = long_question(100)

    def prompt_tokens(front: Gateway) -> int:
        answer = front.chat(NAMESPACE, "May I return it?", **POLICY)
        assert answer.status_code == 200, answer.text
        return int(answer.json()["usage"]["prompt_tokens"])

    old = prompt_tokens(remote)
    remote.chat(NAMESPACE, private)
    assert reused(remote.chat(NAMESPACE, private).json()) > 0, "so there is something to be found"

    scene.cable.cut()
    newer = DOCUMENT | {"version": "2", "text": "Unused parts may be returned within 14 days, in their box. " * 6}
    counts = scene.invalidated(lambda: here.git.commit(documents=[newer]))
    # two nodes and the other gateway have confirmed; of the one that is cut off the lease has run out
    assert (counts["confirmed"], counts["expired"], counts["pending"]) == (3, 1, 0)

    refused = remote.chat(NAMESPACE, "May I return it?", **POLICY)
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "freshness_lease_expired"
    cold = remote.chat(NAMESPACE, private).json()
    assert reused(cold) == 0
    assert cold["kvgrove"]["missed"].get("control_plane_lost", 0) > 0
    new = prompt_tokens(here.front)
    assert new != old

    scene.cable.mend()
    wait_for(lambda: remote.chat(NAMESPACE, "May I return it?", **POLICY).status_code == 200, "its new lease")
    assert prompt_tokens(remote) == new
    assert reused(remote.chat(NAMESPACE, private).json()) > 0, "what it was cut off from is as good as it was"
    wait_ready(here.plane, "pcn/bot")
