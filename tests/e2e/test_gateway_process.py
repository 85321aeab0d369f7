"""Real gateways before real daemons, driven by the official SDK."""

from __future__ import annotations

import json
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
import pytest
from certificates import write_pair
from gateway_rig import KEYS, Stage, client, metrics, stage, wait_ready, wait_until, write_keys
from otlp_collector import Collector, collector

from kvgrove_gateway.tls import TlsFiles
from kvgrove_protocol.control import DocumentPlan, ModelPlan, NamespacePlan, PrefixPlan
from kvgrove_protocol.fence import Fence
from kvgrove_protocol.identity import Isolation, Purge

pytestmark = pytest.mark.e2e

RULES = "The rules of the house are long and nobody reads them. " * 20
HANDBOOK = "The handbook says that version {} is the one that counts. "
SECRET = "zanzibar-pineapple"


@dataclass
class Served:
    stage: Stage
    bases: list[str]
    model: ModelPlan
    collector: Collector

    def issue(self, *namespaces: NamespacePlan, wait: bool = True) -> None:
        revision = self.stage.planner.issue(list(self.stage.planner.models), list(namespaces), wait=wait)
        if wait:
            self.stage.planner.wait_leased(revision)

    def metrics(self, gateway: int = 0) -> str:
        return metrics(self.bases[gateway])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, tiny_model: Callable[[str], Path]) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("gateways")
    with collector() as traces, stage(folder, "--otlp-endpoint", traces.endpoint) as rig:
        for name in ("node-0", "node-1"):
            rig.daemon(name)
        bases = [rig.gateway(name) for name in ("gateway-0", "gateway-1")]
        rig.wait_daemons(2)
        model = ModelPlan(name="tiny", path=str(tiny_model("llama")), pool_bytes={"host": 64 << 20})
        rig.planner.issue([model], [], wait=False)
        rig.planner.wait_named()
        for base in bases:
            wait_ready(base)
        yield Served(rig, bases, rig.planner.models[0], traces)


def test_a_gateway_with_a_certificate_speaks_https_and_nothing_else(served: Served, tmp_path: Path) -> None:
    files = TlsFiles(tmp_path / "tls.crt", tmp_path / "tls.key")
    write_pair(files, 7)
    base = served.stage.gateway("gateway-tls", "--tls-cert", str(files.certificate), "--tls-key", str(files.key))
    assert base.startswith("https://127.0.0.1:")
    trusted = ssl.create_default_context(cafile=str(files.certificate))
    assert httpx.get(f"{base}/healthz", verify=trusted).status_code == 200
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{base}/healthz".replace("https", "http"))
    process = served.stage.processes.pop("gateway-tls")
    process.kill()
    process.wait(30)


@pytest.fixture
def namespace(served: Served, request: pytest.FixtureRequest) -> NamespacePlan:
    """Each test has a namespace of its own, so that none meets another's blocks."""
    planner = served.stage.planner
    made = NamespacePlan(
        uid=f"uid-{request.node.name}",
        name="team/bot",
        aliases=["bot"],
        model="tiny",
        tenants=["acme", "other"],
        purge=Purge(1, b"n" * 16),
        fence=Fence(1, 1, 1),
        lease_seconds=15.0,
        prefixes=[PrefixPlan(name="rules", version="1", body=planner.body(RULES), documents=["handbook"])],
        documents=[
            DocumentPlan(name="handbook", version="v1", body=planner.body(HANDBOOK.format("1") * 12), epoch=1),
            DocumentPlan(name="law", version="v1", body=planner.body("The law. " * 40), epoch=2, scopes=["legal"]),
        ],
    )
    served.issue(made)
    return made


def ask(base: str, text: str = "hello there", *, key: str = "ann", model: str = "team/bot", **more: Any) -> Any:
    extension = more.pop("kvgrove", None)
    return client(base, key).chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": text}],
        max_tokens=more.pop("max_tokens", 6),
        temperature=more.pop("temperature", 0),
        extra_body={} if extension is None else {"kvgrove": extension},
        **more,
    )


def check_sums(reply: Any) -> None:
    """I10, and the two accounts agree."""
    extension = reply.model_extra["kvgrove"]
    assert reply.usage.prompt_tokens_details.cached_tokens == extension["reused_tokens"]
    assert extension["reused_tokens"] + sum(extension["missed"].values()) == reply.usage.prompt_tokens
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


def raw(base: str, body: bytes, key: str | None = "ann", path: str = "/v1/chat/completions") -> httpx.Response:
    headers = {"Content-Type": "application/json"} | ({} if key is None else {"Authorization": f"Bearer {key}"})
    return httpx.post(base + path, content=body, headers=headers, timeout=60)


def error_of(reply: httpx.Response) -> tuple[int, str]:
    return reply.status_code, reply.json()["error"]["code"]


def test_a_repeated_prefix_is_reused_and_accounted_for(served: Served, namespace: NamespacePlan) -> None:
    replies = [ask(served.bases[0], kvgrove={"prefix": "rules"}) for _ in range(2)]
    for reply in replies:
        check_sums(reply)
    assert replies[0].usage.prompt_tokens_details.cached_tokens == 0  # API-01: there, and 0
    assert replies[1].usage.prompt_tokens_details.cached_tokens > 400
    assert replies[1].model_extra["kvgrove"]["node"] == replies[0].model_extra["kvgrove"]["node"]
    assert replies[1].choices[0].message.content == replies[0].choices[0].message.content  # I1
    other = ask(served.bases[0], key="bob", kvgrove={"prefix": "rules"})
    check_sums(other)
    assert 0 < other.usage.prompt_tokens_details.cached_tokens <= replies[1].usage.prompt_tokens_details.cached_tokens


def test_a_request_is_one_trace_from_its_caller_to_the_engines_steps_and_says_no_word_of_it(
    served: Served, namespace: NamespacePlan
) -> None:
    served.issue(namespace)
    trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    answer = client(served.bases[0]).chat.completions.create(
        model="team/bot",
        messages=[{"role": "user", "content": f"{SECRET} {RULES}"}],
        max_tokens=3,
        extra_headers={"traceparent": f"00-{trace}-{parent}-01"},
    )
    assert answer.usage is not None
    steps = {"chat", "assemble", "generate", "wait", "prefill", "decode"}
    wait_until(lambda: steps <= served.collector.spans(trace).keys(), "the trace")
    spans = served.collector.spans(trace)
    assert spans["chat"].parent == parent
    assert {spans[name].parent for name in ("assemble", "generate")} == {spans["chat"].id}
    assert {spans[name].parent for name in ("wait", "prefill", "decode")} == {spans["generate"].id}
    assert [spans[name].service for name in ("chat", "prefill")] == ["kvgrove-gateway", "kvgrove-daemon"]
    for name in ("chat", "generate"):
        assert spans[name].attributes["kvgrove.prompt_tokens"] == answer.usage.prompt_tokens
        assert spans[name].attributes["kvgrove.completion_tokens"] == answer.usage.completion_tokens
    assert not any(span.failed for span in spans.values())
    assert not any(SECRET.encode() in body for body in served.collector.raw)


def test_both_gateways_learn_residency_from_the_nodes(served: Served, namespace: NamespacePlan) -> None:
    first = ask(served.bases[0], kvgrove={"prefix": "rules"})
    second = ask(served.bases[1], kvgrove={"prefix": "rules"})
    assert second.model_extra["kvgrove"]["node"] == first.model_extra["kvgrove"]["node"]
    assert second.usage.prompt_tokens_details.cached_tokens > 400


def test_plain_and_streamed_answers_agree(served: Served, namespace: NamespacePlan) -> None:
    """API-02."""
    ask(served.bases[0])
    plain = ask(served.bases[0], logprobs=True, top_logprobs=2)
    chunks = list(
        ask(served.bases[0], logprobs=True, top_logprobs=2, stream=True, stream_options={"include_usage": True})
    )
    assert chunks[-1].usage == plain.usage
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].model_extra["kvgrove"]["missed"] == plain.model_extra["kvgrove"]["missed"]
    choices = [chunk.choices[0] for chunk in chunks[:-1]]
    assert "".join(choice.delta.content or "" for choice in choices) == plain.choices[0].message.content
    assert [choice.finish_reason for choice in choices if choice.finish_reason] == ["length"]
    streamed = [entry for choice in choices if choice.logprobs for entry in choice.logprobs.content]
    assert [entry.token for entry in streamed] == [entry.token for entry in plain.choices[0].logprobs.content]
    assert len(streamed) == plain.usage.completion_tokens == 6
    assert all(len(entry.top_logprobs) == 2 for entry in streamed)
    without = list(ask(served.bases[0], stream=True))
    assert all(chunk.usage is None for chunk in without)
    assert without[-1].model_extra["kvgrove"]["reused_tokens"] == plain.usage.prompt_tokens_details.cached_tokens


def test_a_stop_string_ends_the_answer_and_is_not_part_of_it(served: Served, namespace: NamespacePlan) -> None:
    whole = ask(served.bases[0], max_tokens=24).choices[0].message.content
    stop = whole[len(whole) // 2 : len(whole) // 2 + 2]
    plain = ask(served.bases[0], max_tokens=24, stop=[stop])
    assert plain.choices[0].message.content == whole[: whole.index(stop)]
    assert plain.choices[0].finish_reason == "stop"
    check_sums(plain)
    streamed = list(ask(served.bases[0], max_tokens=24, stop=stop, stream=True))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in streamed if chunk.choices)
    assert text == whole[: whole.index(stop)]


def test_a_seed_makes_an_answer_repeatable(served: Served, namespace: NamespacePlan) -> None:
    answers = {ask(served.bases[0], seed=11, temperature=1.5, max_tokens=16).choices[0].message.content for _ in "ab"}
    assert len(answers) == 1


def test_who_may_call_what(served: Served, namespace: NamespacePlan) -> None:
    base = served.bases[0]
    with pytest.raises(openai.AuthenticationError) as wrong:
        ask(base, key="nobody")
    assert wrong.value.code == "invalid_api_key"
    assert raw(base, b"{}", key=None).status_code == 401
    with pytest.raises(openai.PermissionDeniedError) as denied:
        ask(base, key="eve")
    assert (denied.value.code, denied.value.param) == ("namespace_not_allowed", "model")
    with pytest.raises(openai.NotFoundError) as unknown:
        ask(base, model="team/other")
    assert unknown.value.code == "model_not_found"
    assert [model.id for model in client(base).models.list()] == ["bot", "team/bot"]
    assert [model.id for model in client(base, "eve").models.list()] == []
    assert client(base).models.retrieve("team/bot").id == "team/bot"


def test_unknown_and_forbidden_documents_answer_alike(served: Served, namespace: NamespacePlan) -> None:
    bodies = []
    for name in ("law", "nowhere"):
        with pytest.raises(openai.NotFoundError) as caught:
            ask(served.bases[0], kvgrove={"documents": [name]})
        bodies.append(caught.value.body)
    assert bodies[0] == bodies[1]
    assert ask(served.bases[0], key="bob", kvgrove={"documents": ["law"]}).usage.prompt_tokens > 40


def test_bad_requests_name_the_field(served: Served, namespace: NamespacePlan) -> None:
    base = served.bases[0]
    with pytest.raises(openai.BadRequestError) as tools:
        ask(base, tools=[{"type": "function", "function": {"name": "f"}}])
    assert tools.value.param == "tools"
    with pytest.raises(openai.BadRequestError) as long:
        ask(base, "word " * 5000)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as much:
        ask(base, max_tokens=5000)
    assert (much.value.code, much.value.param) == ("context_length_exceeded", "max_tokens")
    assert error_of(raw(base, b'{"model": ')) == (400, "invalid_json")
    assert error_of(raw(base, b" " * (9 << 20))) == (413, "body_too_large")
    assert error_of(raw(base, b"{}", path="/v1/nowhere")) == (404, "no_such_endpoint")
    assert ask(base).usage.completion_tokens == 6  # and it serves on


def test_i3_fresh_a_changed_document_is_met_by_no_later_request(served: Served, namespace: NamespacePlan) -> None:
    before = ask(served.bases[0], kvgrove={"prefix": "rules"})
    text = HANDBOOK.format("2 (which is new)") * 12
    changed = msgspec.structs.replace(
        namespace,
        fence=Fence(1, 2, 1),
        documents=[
            DocumentPlan(name="handbook", version="v2", body=served.stage.planner.body(text), epoch=3),
            namespace.documents[1],
        ],
    )
    served.issue(changed)
    for base in served.bases:
        after = ask(base, kvgrove={"prefix": "rules"})
        check_sums(after)
        assert after.usage.prompt_tokens > before.usage.prompt_tokens  # the new text, which is longer
    assert ask(served.bases[0], "other", kvgrove={"prefix": "rules"}).usage.prompt_tokens_details.cached_tokens > 400


def test_i3_fresh_a_gateway_that_is_cut_off_answers_cold_or_refuses(served: Served, namespace: NamespacePlan) -> None:
    planner = served.stage.planner
    short = msgspec.structs.replace(namespace, lease_seconds=1.5, fence=Fence(1, 1, 2))
    served.issue(short)
    planner.cut_off.add("gateway-1")
    try:
        changed = msgspec.structs.replace(
            short,
            fence=Fence(1, 2, 2),
            documents=[msgspec.structs.replace(short.documents[0], epoch=4), short.documents[1]],
        )
        served.issue(changed)  # every member that is not cut off has it; the other's lease runs out

        def refused() -> bool:
            try:
                ask(served.bases[1], kvgrove={"prefix": "rules"})
            except openai.APIStatusError as error:
                return bool(error.code == "freshness_lease_expired" and error.status_code == 503)
            return False

        wait_until(refused, "the lease has run out")
        for _ in range(2):
            cold = ask(served.bases[1], "twice the same")
            check_sums(cold)
            assert cold.model_extra["kvgrove"]["missed"] == {"control_plane_lost": cold.usage.prompt_tokens}
        reply = raw(
            served.bases[1],
            json.dumps(
                {"model": "bot", "messages": [{"role": "user", "content": "x"}], "kvgrove": {"documents": ["handbook"]}}
            ).encode(),
        )
        assert error_of(reply) == (503, "freshness_lease_expired")
        assert int(reply.headers["Retry-After"]) > 0
        assert ask(served.bases[0], kvgrove={"prefix": "rules"}).usage.prompt_tokens > 400
    finally:
        planner.cut_off.clear()
    served.issue(msgspec.structs.replace(namespace, fence=Fence(1, 3, 3)))
    wait_until(lambda: _answers(served.bases[1], {"prefix": "rules"}), "it is back under a lease")


def _answers(base: str, extension: dict[str, Any]) -> bool:
    try:
        ask(base, kvgrove=extension)
    except openai.APIStatusError:
        return False
    return True


def test_i3_fresh_a_gateway_that_is_behind_resolves_anew(served: Served, namespace: NamespacePlan) -> None:
    """It holds a lease still, but the nodes know a newer state: they refuse, and it waits for the plan."""
    planner = served.stage.planner
    assert ask(served.bases[0], kvgrove={"prefix": "rules"}).usage.completion_tokens
    planner.cut_off.add("gateway-0")
    longer = HANDBOOK.format("3 (newer still)") * 14
    changed = msgspec.structs.replace(
        namespace,
        fence=Fence(1, 2, 1),
        documents=[
            DocumentPlan(name="handbook", version="v3", body=planner.body(longer), epoch=5),
            namespace.documents[1],
        ],
    )
    replies: list[Any] = []
    try:
        served.issue(changed)
        asking = threading.Thread(target=lambda: replies.append(ask(served.bases[0], kvgrove={"prefix": "rules"})))
        asking.start()
        wait_until(
            lambda: 'retries_total{reason="stale_fence"}' in served.metrics(), "a node has refused the old fence"
        )
    finally:
        planner.cut_off.clear()
    planner.issue(list(planner.models), [changed])
    asking.join(100)
    there = ask(served.bases[1], kvgrove={"prefix": "rules"})
    assert replies
    assert replies[0].usage.prompt_tokens == there.usage.prompt_tokens


def test_a_namespace_that_fails_closed_refuses_without_a_lease(served: Served, namespace: NamespacePlan) -> None:
    planner = served.stage.planner
    closed = msgspec.structs.replace(namespace, lease_seconds=1.0, fail_closed=True, fence=Fence(1, 1, 2))
    served.issue(closed)
    assert _answers(served.bases[1], {})
    planner.cut_off.add("gateway-1")
    try:
        wait_until(lambda: not _answers(served.bases[1], {}), "it refuses")
    finally:
        planner.cut_off.clear()


def test_a_caller_that_leaves_frees_everything(served: Served, namespace: NamespacePlan) -> None:
    stream = ask(served.bases[0], max_tokens=1500, stream=True)
    next(iter(stream))
    stream.response.close()
    wait_until(lambda: "kvgrove_gateway_requests_in_flight 0.0" in served.metrics(), "nothing is under way")
    assert 'outcome="client_gone"' in served.metrics()
    nodes = ("node-0", "node-1")
    wait_until(
        lambda: any('code="cancelled"' in served.stage.node_metrics(name) for name in nodes), "the node has stopped too"
    )


def test_a_silent_node_is_left_for_another_one(served: Served, namespace: NamespacePlan) -> None:
    """The node stands still when the request comes, then dies: not one token was sent, so it is answered elsewhere."""
    rig = served.stage
    first = ask(served.bases[0], kvgrove={"prefix": "rules"})
    name = first.model_extra["kvgrove"]["node"]
    rig.processes[name].send_signal(signal.SIGSTOP)
    replies: list[Any] = []
    asking = threading.Thread(target=lambda: replies.append(ask(served.bases[0], kvgrove={"prefix": "rules"})))
    asking.start()
    wait_until(lambda: "kvgrove_gateway_requests_in_flight 1.0" in served.metrics(), "the request is under way")
    rig.kill(name)
    asking.join(100)
    assert replies
    assert replies[0].model_extra["kvgrove"]["node"] != name
    assert replies[0].choices[0].message.content == first.choices[0].message.content
    assert 'kvgrove_gateway_retries_total{reason="node_lost"}' in served.metrics()
    rig.planner.forget(name)
    rig.daemon(name)
    rig.wait_daemons(2)
    wait_until(lambda: 'kvgrove_gateway_nodes{state="ready"} 2.0' in served.metrics(), "and linked")


def test_keys_are_taken_over_while_it_runs(served: Served, namespace: NamespacePlan) -> None:
    write_keys(served.stage.keys, KEYS | {"new": ("acme", "new", [])})
    try:
        wait_until(lambda: raw(served.bases[0], b"{}", key="new").status_code == 400, "the new key is known")
    finally:
        write_keys(served.stage.keys)
    wait_until(lambda: raw(served.bases[0], b"{}", key="new").status_code == 401, "and forgotten")


def test_user_isolation_needs_the_verified_user(served: Served, namespace: NamespacePlan) -> None:
    """``user`` in the body is no identity (I2)."""
    served.issue(msgspec.structs.replace(namespace, isolation=Isolation.TENANT, fence=Fence(1, 1, 2)))
    mine = [ask(served.bases[0], "a long enough question " * 20, user="bob") for _ in range(2)]
    assert mine[1].usage.prompt_tokens_details.cached_tokens > 0
    theirs = ask(served.bases[0], "a long enough question " * 20, key="bob", user="ann")
    assert theirs.usage.prompt_tokens_details.cached_tokens == 0
    assert "control_plane_lost" not in theirs.model_extra["kvgrove"]["missed"]


def test_i12_quiet_no_prompt_text_in_logs_or_metrics(served: Served, namespace: NamespacePlan) -> None:
    ask(served.bases[0], f"remember {SECRET}", user=SECRET, kvgrove={"session": SECRET})
    raw(served.bases[0], json.dumps({"model": SECRET, "messages": SECRET}).encode())
    raw(served.bases[0], b"{}", key=SECRET)
    emitted = served.metrics() + "".join(served.stage.log(name) for name in served.stage.processes)
    assert SECRET not in emitted
    assert "Traceback" not in emitted


def test_sigterm_lets_an_answer_finish(served: Served, namespace: NamespacePlan) -> None:
    rig = served.stage
    base = rig.gateway("gateway-2")
    wait_ready(base)
    wait_until(lambda: _answers(base, {"prefix": "rules"}), "it is under a lease")
    stream = ask(base, max_tokens=300, stream=True)
    chunks = [next(iter(stream))]
    process = rig.processes.pop("gateway-2")
    process.send_signal(signal.SIGTERM)
    chunks += list(stream)
    assert chunks[-1].choices[0].finish_reason in ("length", "stop")
    assert process.wait(60) == 0


@pytest.mark.parametrize("problem", ["port", "keys", "broken", "listen"])
def test_what_stops_the_start_is_one_line(tmp_path: Path, problem: str) -> None:
    keys = tmp_path / "keys.yaml"
    write_keys(keys)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}" if problem == "port" else "127.0.0.1:0"
        if problem == "keys":
            keys.unlink()
        if problem == "broken":
            keys.write_text("keys: 3")
        ended = subprocess.run(
            [sys.executable, "-m", "kvgrove_gateway", "--member", "g", "--plain-links", "--control", "tcp://127.0.0.1:9",
             "--listen", "nonsense" if problem == "listen" else listen, "--keys", str(keys)],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
    assert ended.returncode == 2
    assert ended.stderr.startswith("kvgrove-gateway: error: ")
    assert ended.stderr.count("\n") == 1
