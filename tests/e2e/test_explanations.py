"""Explanations of a real fleet: what is explained is what happens then, and who is told of it (I2, I10, PRO-09)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from gateway_rig import Stage, stage, wait_ready
from gateway_rig import metrics as scrape

from kvgrove_cli.__main__ import kvgrove
from kvgrove_gateway.explain.report import Report, decode
from kvgrove_protocol.control import DocumentPlan, ModelPlan, NamespacePlan, PrefixPlan
from kvgrove_protocol.fence import Fence
from kvgrove_protocol.identity import Purge

pytestmark = pytest.mark.e2e

RULES = "The rules of the house are long and nobody reads them. " * 8
LAW = "A law that only few may read. " * 8
NODES = ("node-0", "node-1")


@dataclass
class Served:
    stage: Stage
    base: str
    namespace: NamespacePlan

    def post(self, path: str, body: Any, key: str) -> httpx.Response:
        return httpx.post(self.base + path, json=body, headers={"Authorization": f"Bearer {key}"}, timeout=120)

    def explain(self, *requests: dict[str, Any], key: str = "ann", admin: bool = False, **more: Any) -> Report:
        path = "/admin/explain" if admin else "/v1/explain"
        reply = self.post(path, {"requests": list(requests), **more}, key)
        assert reply.status_code == 200, reply.text
        return decode(reply.content)

    def ask(self, body: dict[str, Any], key: str = "ann") -> dict[str, Any]:
        reply = self.post("/v1/chat/completions", body, key)
        assert reply.status_code == 200, reply.text
        extension: dict[str, Any] = reply.json()["kvgrove"]
        return extension


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, tiny_model: Callable[[str], Path]) -> Iterator[Served]:
    with stage(tmp_path_factory.mktemp("explain")) as rig:
        lines = rig.keys.read_text().replace("- {id: bob,", "- {id: bob, operator: true,")
        rig.keys.write_text(lines)
        for name in NODES:
            rig.daemon(name)
        base = rig.gateway("gateway-0")
        rig.wait_daemons(len(NODES))
        planner = rig.planner
        model = ModelPlan(name="tiny", path=str(tiny_model("llama")), pool_bytes={"host": 32 << 20})
        namespace = NamespacePlan(
            uid="uid",
            name="team/bot",
            model="tiny",
            tenants=["acme", "other"],
            purge=Purge(1, b"n" * 16),
            fence=Fence(1, 1, 1),
            lease_seconds=60.0,
            prefixes=[PrefixPlan(name="rules", version="1", body=planner.body(RULES))],
            documents=[DocumentPlan(name="law", version="1", body=planner.body(LAW), epoch=1, scopes=["legal"])],
        )
        planner.issue([model], [namespace], wait=False)
        planner.wait_named()
        wait_ready(base)
        planner.wait_leased(planner.issue(list(planner.models), [namespace]))
        yield Served(rig, base, namespace)


def chat(*texts: str, **more: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    messages = [{"role": roles[at % 2], "content": text} for at, text in enumerate(texts)]
    return {"model": "team/bot", "max_tokens": 2, "temperature": 0, "messages": messages, **more}


LONG = "Tell me all that there is to say of gardens and of what grows in them. " * 6


def test_i10_explained_what_is_explained_is_what_happens_then(served: Served) -> None:
    body = chat(LONG, kvgrove={"prefix": "rules"})
    for _ in range(2):
        view = served.explain(body).prompts[0]
        told = served.ask(body)
        assert (view.reused_tokens, view.missed) == (told["reused_tokens"], told["missed"])
        assert view.node == told["node"]
        assert view.reused_tokens + sum(view.missed.values()) == view.tokens
        assert [piece.start for piece in view.pieces] == [0, *(piece.end for piece in view.pieces[:-1])]
    assert view.reused_tokens > 0


def test_two_prompts_part_where_their_texts_do(served: Served) -> None:
    one, other = chat(LONG, "Roses.", "Why?"), chat(LONG, "Nettles.", "Why?")
    served.ask(one)
    report = served.explain(one, other)
    parting = report.parting
    assert parting is not None
    assert parting.a is not None
    assert parting.b is not None
    assert (parting.a.message, parting.b.message, parting.because) == (1, 1, "tokens")
    assert parting.b.text is not None
    assert "Nettles.".startswith(parting.b.text.strip())
    second = report.prompts[1]
    assert second.reused_tokens == parting.block * second.block_size
    missed = [piece for piece in second.pieces if piece.reason == "new"]
    assert missed[0].start == second.reused_tokens
    assert [change.kind for change in report.changes] == ["changed"]


def test_pro_09_an_anthropic_body_names_the_block_that_moved(served: Served) -> None:
    reminder = {"type": "text", "text": "<reminder>be brief</reminder>"}

    def body(first: list[dict[str, str]], last: list[dict[str, str]]) -> dict[str, Any]:
        return {
            "model": "team/bot",
            "max_tokens": 2,
            "system": [{"type": "text", "text": "You help.", "cache_control": {"type": "ephemeral"}}],
            "messages": [
                {"role": "user", "content": [*first, {"type": "text", "text": "Look."}]},
                {"role": "assistant", "content": "Yes."},
                {"role": "user", "content": [{"type": "text", "text": "And?"}, *last]},
            ],
        }

    report = served.explain(body([reminder], []), body([], [reminder]))
    assert [(each.kind, each.a, each.b) for each in report.changes] == [
        ("moved", "messages[0].content[0]", "messages[2].content[1]")
    ]
    assert report.parting is not None
    assert report.parting.a is not None
    assert report.parting.a.message == 0, "as the body numbers them, whatever the system text is to the template"
    assert {piece.origin for piece in report.prompts[0].pieces} >= {"system.content", "messages[2].content"}


def test_i2_isolated_callers_are_told_of_their_own_realm_and_operators_of_any(served: Served) -> None:
    body = chat("What ann asked and nobody else did. " * 9)
    told = served.ask(body)
    own, others = served.explain(body).prompts[0], served.explain(body, key="bob").prompts[0]
    assert own.reused_tokens > 0
    assert (others.reused_tokens, set(others.missed)) == (0, {"new", "partial_block"})
    for view in (own, others):
        assert (len(view.nodes), view.route) == (1, None)
    report = served.explain(body, body, key="bob", admin=True, callers=[None, {"tenant": "acme", "user": "ann"}])
    bobs, anns = report.prompts
    assert bobs.reused_tokens == 0
    held = {view.node: sum(view.reused.values()) for view in anns.nodes}
    assert sorted(held) == list(NODES)
    assert held[told["node"]] == own.reused_tokens
    assert anns.route is not None
    assert anns.route.why == "reuse"
    assert {row.node for row in anns.route.candidates} == set(NODES)
    assert report.parting is not None
    assert (report.parting.because, report.parting.a) == ("caller", None)


def test_iso_14_only_operators_ask_across_realms(served: Served) -> None:
    body = chat("x")
    denied = served.post("/admin/explain", {"requests": [body]}, "ann")
    assert (denied.status_code, denied.json()["error"]["code"]) == (403, "operators_only")
    behalf = served.post("/v1/explain", {"requests": [body], "callers": [{"tenant": "other"}]}, "ann")
    assert (behalf.status_code, behalf.json()["error"]["param"]) == (400, "callers")
    assert served.post("/v1/explain", {"requests": [body]}, "nobody").status_code == 401
    assert served.post("/v1/explain", {"requests": [chat("x")]}, "eve").status_code == 403
    hidden = [
        served.post("/v1/explain", {"requests": [chat("x", kvgrove={"documents": [name]})]}, "ann")
        for name in ("law", "nowhere")
    ]
    assert hidden[0].status_code == hidden[1].status_code == 404
    assert hidden[0].content == hidden[1].content


def test_bad_bodies_name_the_field(served: Served) -> None:
    for body, field in (
        ({}, "requests"),
        ({"requests": []}, "requests"),
        ({"requests": [chat("x")] * 3}, "requests"),
        ({"requests": [chat("x"), {"model": "team/bot"}]}, "requests[1].messages"),
        ({"requests": [chat("x", temperature=9)]}, "requests[0].temperature"),
    ):
        reply = served.post("/v1/explain", body, "ann")
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, field), reply.text
    long = served.post("/v1/explain", {"requests": [chat("word " * 5000)]}, "ann")
    assert (long.status_code, long.json()["error"]["code"]) == (400, "context_length_exceeded")


def test_i12_quiet_texts_are_in_the_answer_to_who_sent_them_and_nowhere_else(served: Served) -> None:
    body = chat("zanzibar-pineapple", kvgrove={"prefix": "rules"})
    reply = served.post("/v1/explain", {"requests": [body]}, "ann")
    assert "pineapple" in reply.text
    assert "nobody reads them" not in reply.text, "the declared text was not sent by the caller"
    law = served.post("/v1/explain", {"requests": [chat("x", kvgrove={"documents": ["law"]})]}, "bob")
    assert "only few may read" not in law.text
    metrics = scrape(served.base)
    for said in (metrics, *(served.stage.log(name) for name in ("gateway-0", *NODES))):
        assert "pineapple" not in said


def test_asking_counts_no_prompt(served: Served) -> None:
    def prompts() -> str:
        lines = scrape(served.base).splitlines()
        nodes = [served.stage.node_metrics(name).splitlines() for name in NODES]
        return "\n".join(line for line in sum(nodes, lines) if "prompt_tokens_total" in line or "reused" in line)

    before = prompts()
    for _ in range(3):
        served.explain(chat(LONG))
    assert prompts() == before


def test_the_command_asks_a_gateway(served: Served, tmp_path: Path) -> None:
    files = []
    for name, text in (("a", "Roses."), ("b", "Nettles.")):
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps(chat(LONG, text, "Why?", kvgrove={"prefix": "rules"})))
        files.append(str(file))

    def run(*arguments: str, key: str) -> str:
        found = CliRunner().invoke(kvgrove, ["explain", *files, "--url", f"{served.base}/v1", "--key", key, *arguments])
        assert found.exit_code == 0, (found.output, found.exception)
        return found.output

    told = run(key="ann")
    assert "prefix:rules" in told
    assert "messages[1].content" in told
    report = decode(run("--admin", "-o", "json", key="bob").encode())
    assert [len(each.nodes) for each in report.prompts] == [len(NODES)] * 2
    assert "[prefix:rules, " in run("-o", "html", key="ann")


def test_every_answer_says_why_in_a_header_too_unless_it_is_to_do_without(served: Served) -> None:
    messages = {**chat("What does the header say?"), "stream": False}
    for path, body in (
        ("/v1/chat/completions", messages),
        ("/v1/messages", {name: value for name, value in messages.items() if name != "stream"}),
        ("/v1/completions", {"model": "team/bot", "prompt": "What?", "max_tokens": 2, "temperature": 0}),
    ):
        reply = served.post(path, body, "ann")
        assert reply.status_code == 200, reply.text
        extension = reply.json()["kvgrove"]
        counts = dict(part.split("=") for part in reply.headers["x-kvgrove-cache"].split("; "))
        assert int(counts.pop("reused")) == extension["reused_tokens"]
        assert {name: int(count) for name, count in counts.items()} == extension["missed"]
        streamed = served.post(path, body | {"stream": True}, "ann")
        assert streamed.headers["x-kvgrove-cache"].startswith("reused=")
        without = served.post(path, body | {"kvgrove": {"reasons": False}}, "ann")
        assert "x-kvgrove-cache" not in without.headers
        assert "missed" not in without.json()["kvgrove"]
        assert without.json()["usage"]
