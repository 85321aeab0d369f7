"""Who a caller is and what it may share, through a real fleet: nothing that a request says chooses either."""

from __future__ import annotations

import json
import random
import re
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from fleets import NAMESPACE, STEP_SECONDS, RunningFleet, running_fleet, write_manifests
from jwks_server import Issuer, running_issuer

from kvgrove_cli import api_keys
from kvgrove_cli.state_dir import StateDir
from kvgrove_cli.status import FleetStatus

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

LONG = "a long enough question to fill a few blocks of the cache " * 12
PROBES = 200
CANARY = "zanzibar-pineapple-4711"

KEYS: dict[str, dict[str, Any]] = {
    "ann": {"tenant": "acme", "user": "ann", "scopes": ["staff"]},
    "bob": {"tenant": "acme", "user": "bob", "scopes": ["staff"]},
    "carl": {"tenant": "globex", "user": "carl", "scopes": ["staff"]},
    "anybody": {"tenant": "acme", "scopes": ["staff"]},
    "guest": {"tenant": "acme", "user": "guest"},
    "brief": {"tenant": "brief", "user": "b"},
    "sparing": {"tenant": "sparing", "user": "s"},
    "root": {"tenant": "operations", "operator": True},
    "scraper": {"tenant": "operations", "monitor": True, "namespaces": []},
}
RATES = """\
tenants:
  brief: {requests_per_minute: 2}
  sparing: {prompt_tokens_per_minute: 150}
"""


class World:
    """A fleet with an issuer, allowances and an audit log."""

    def __init__(self, running: RunningFleet, model: Path, root: Path, issuer: Issuer) -> None:
        self.running, self.model, self.root, self.issuer = running, model, root, issuer
        self.base = running.fleet.base_url.removesuffix("/v1")
        self.state = StateDir(root / "state")

    def declare(self, *, isolation: str = "Tenant", access: str = "{}", privacy: str = "{}", text: str = "") -> None:
        """Put these rules in force: when this returns, every member has said that it enforces them."""
        before = self.running.fleet.status().revision
        write_manifests(self.running.manifests, self.model, lease="20s")
        file = self.running.manifests / "all.yaml"
        lines = f"  isolation: {isolation}\n  access: {access}\n  privacy: {privacy}\n  prefixes:\n"
        declared = file.read_text().replace("  prefixes:\n", lines)
        file.write_text(declared.replace("rentals of bicycles.", f"rentals of bicycles. {text}"))
        self.running.do(self.running.fleet.apply())

        def reached(current: FleetStatus) -> bool:
            return current.ready and current.namespace(NAMESPACE).invalidation_complete

        assert self.running.do(self.running.fleet.wait_for(reached, STEP_SECONDS)).revision != "" != before

    def send(
        self,
        question: str,
        who: str,
        *,
        path: str = "chat/completions",
        headers: dict[str, str] | None = None,
        **body: Any,
    ) -> httpx.Response:
        message = {"model": NAMESPACE, "messages": [{"role": "user", "content": question}], "max_tokens": 1}
        key = self.running.keys.get(who, who)
        return httpx.post(
            f"{self.base}/v1/{path}",
            json=message | body,
            headers={"Authorization": f"Bearer {key}"} | (headers or {}),
            timeout=STEP_SECONDS * 2,
        )

    def told(self, question: str, who: str, **more: Any) -> tuple[int, dict[str, int], int]:
        """Reused tokens, missed tokens by reason, prompt tokens."""
        answer = self.send(question, who, **more)
        assert answer.status_code == 200, answer.text
        body = answer.json()
        return body["kvgrove"]["reused_tokens"], body["kvgrove"]["missed"], body["usage"]["prompt_tokens"]

    def get(self, path: str, who: str | None) -> httpx.Response:
        headers = {} if who is None else {"Authorization": f"Bearer {self.running.keys[who]}"}
        return httpx.get(self.base + path, headers=headers, timeout=STEP_SECONDS)

    def audited(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.state.audit_file("gateway-0").read_text().splitlines()]

    def wait_audited(self, reached: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first record for which ``reached`` holds: it is written behind the answer's back."""
        deadline = time.monotonic() + STEP_SECONDS
        while True:
            found = [record for record in self.audited() if reached(record)]
            if found:
                return found[-1]
            assert time.monotonic() < deadline, "no such record"
            time.sleep(0.05)

    def token(self, kid: str = "first", **claims: Any) -> str:
        now = int(time.time())
        whole = {"iss": "https://id.example", "aud": "kvgrove", "exp": now + 600, "iat": now} | claims
        return self.issuer.sign(kid, whole)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, tiny_model: Callable[[str], Path]) -> Iterator[World]:
    root = tmp_path_factory.mktemp("identity")
    (root / "rates.yaml").write_text(RATES)
    with running_issuer() as issuer:
        issuer.make("first")
        issuer.publish("first")
        rule = {
            "issuer": {"url": "https://id.example", "audiences": ["kvgrove"]},
            "jwks": {"url": issuer.url, "retrySeconds": 0.1},
            "claimMappings": {"tenant": {"claim": "org"}, "operators": {"claim": "groups", "anyOf": ["sre"]}},
        }
        (root / "oidc.yaml").write_text(json.dumps({"jwt": [rule]}))
        options = {"oidc": root / "oidc.yaml", "rate_limits": root / "rates.yaml", "audit": True}
        model = tiny_model("llama")
        with running_fleet(root, model, nodes=1, gateways=1, lease="20s", more_keys=KEYS, **options) as running:
            yield World(running, model, root, issuer)


def test_iso_14_metrics_and_admin_take_operators_only_and_are_audited(world: World) -> None:
    world.declare()
    for path in ("/metrics", "/admin", "/admin/explain", "/admin/anything"):
        assert world.get(path, None).status_code == 401
        denied = world.get(path, "ann")
        assert (denied.status_code, denied.json()["error"]["code"]) == (403, "operators_only")
    assert world.get("/admin/explain", "scraper").status_code == 403
    assert "kvgrove_gateway_denied_total" in world.get("/metrics", "scraper").text
    assert world.get("/metrics", "root").status_code == 200
    assert world.get("/admin/anything", "root").status_code == 404
    used = world.wait_audited(lambda each: each["event"] == "admin" and each["status"] == 404)
    assert (used["credential"], used["tenant"], used["kind"]) == ("root", "operations", "api_key")
    refused = [each for each in world.audited() if each["event"] == "denied" and each["status"] == 403]
    assert {each["credential"] for each in refused} == {"ann", "scraper"}
    unknown = [each for each in world.audited() if each["event"] == "denied" and each["status"] == 401]
    assert unknown
    assert not any("credential" in each for each in unknown)


def test_i2_isolated_a_revoked_scope_stops_hits_at_once_whatever_is_resident(world: World) -> None:
    world.declare(access="{tenants: [acme], scopes: []}")
    extension = {"kvgrove": {"prefix": "support"}}
    for who in ("guest", "ann"):
        world.told(LONG, who)
        assert world.told(LONG, who)[0] > 0
    assert world.send("x", "guest", **extension).status_code == 200
    world.declare(access="{tenants: [acme], scopes: [staff]}")
    for question in (LONG, LONG, "something that nobody has asked before " * 15):
        reused, missed, prompt = world.told(question, "guest")
        assert (reused, missed) == (0, {"scope_denied": prompt})
    hidden = [
        world.send("x", "guest", kvgrove=named)
        for named in ({"prefix": "support"}, {"prefix": "nowhere"}, {"documents": ["policy"]}, {"documents": ["none"]})
    ]
    assert [each.status_code for each in hidden] == [404] * 4
    assert hidden[0].json() == hidden[1].json()
    assert hidden[2].json() == hidden[3].json()
    assert world.told(LONG, "ann")[0] > 0  # who holds it goes on as before
    assert world.send("x", "carl").status_code == 403  # not its tenant
    world.declare(access="{tenants: [acme]}")
    assert "scope_denied" not in world.told(LONG, "guest")[1]


IDENTITY_HEADERS = (
    "X-Tenant", "X-Tenant-Id", "X-Scope-OrgID", "X-User", "X-User-Id", "X-Forwarded-User", "X-Remote-User",
    "X-Auth-Request-User", "X-Forwarded-Email", "X-Forwarded-Groups", "Remote-User", "OpenAI-Organization",
    "OpenAI-Project", "anthropic-organization-id", "X-Session-Id", "X-Session-Affinity", "X-Cache-Salt", "X-Realm",
    "X-Kvgrove-Tenant", "X-Kvgrove-Realm", "Forwarded", "X-Forwarded-For", "Baggage", "Cookie", "Session-Id",
)  # fmt: skip
IDENTITY_FIELDS = (
    "tenant", "tenant_id", "user", "user_id", "org", "organization", "scopes", "realm", "namespace", "isolation",
    "cache_salt", "prompt_cache_key", "safety_identifier", "session_id", "session", "conversation", "identity",
    "kv_transfer_params", "extra_body", "lora_name",
)  # fmt: skip


def test_i2_isolated_no_header_and_no_field_chooses_tenant_user_or_realm(world: World) -> None:
    """Bob, and somebody of another tenant, claim to be Ann in every way that people have thought of."""
    world.declare(isolation="User")
    carrying: list[dict[str, Any]] = [{"headers": {name: "ann"}} for name in IDENTITY_HEADERS]
    carrying += [{name: "ann"} for name in IDENTITY_FIELDS]
    carrying += [{"metadata": {name: "ann"}} for name in ("user_id", "tenant", "session_id")]
    carrying += [{"kvgrove": {name: "ann"}} for name in ("tenant", "user", "realm", "session", "scopes")]
    questions = [f"question {number} of Ann's: " + LONG[:300] for number in range(len(carrying))]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda each: world.told(each, "ann"), questions))
    assert world.told(questions[0], "ann")[0] > 0
    taken = 0
    for number, claimed in enumerate(carrying):
        answer = world.send(questions[number], ("bob", "carl")[number % 2], **claimed)
        if answer.status_code == 400:  # refused by name, and nothing served
            assert answer.json()["error"]["param"]
            continue
        assert answer.status_code == 200, (claimed, answer.text)
        taken += 1
        assert answer.json()["kvgrove"]["reused_tokens"] == 0, claimed
    assert taken > len(IDENTITY_HEADERS)
    claimed_by = [each for each in world.audited() if each.get("credential") in ("bob", "carl")]
    assert {(each["tenant"], each["user"]) for each in claimed_by} == {("acme", "bob"), ("globex", "carl")}


def test_i2_isolated_a_session_only_narrows_within_the_verified_user(world: World) -> None:
    world.declare(isolation="Session")
    session = {"kvgrove": {"session": "one"}}
    question = "within a session " + LONG
    world.told(question, "ann", **session)
    assert world.told(question, "ann", **session)[0] > 0
    assert world.told(question, "ann", kvgrove={"session": "two"})[0] == 0
    for who in ("bob", "carl"):
        assert world.told(question, who, **session)[0] == 0


@pytest.mark.parametrize(("isolation", "who"), [("User", "anybody"), ("Session", "ann")])
def test_iso_10_a_level_without_its_field_shares_nothing_with_anybody(world: World, isolation: str, who: str) -> None:
    world.declare(isolation=isolation)
    question = f"in a {isolation} without its field " + LONG
    for asking in (who, who, "carl"):
        reused, missed, prompt = world.told(question, asking)
        assert reused == 0
        assert sum(missed.values()) == prompt
    assert world.send(question, "no-such-key").status_code == 401


def test_iso_03_guesses_of_anothers_prompt_are_told_as_misses_are(world: World) -> None:
    """200 prompts of Ann's and 200 that nobody has sent, in an order drawn by lot: what Carl is told is equal.

    Whether times can be told apart is `bench/side_channel.py`'s to say.
    """
    world.declare()
    draw = random.Random(3)
    letters = "abcdefghijklmnopqrstuvwxyz"

    def secret() -> str:
        return "my secret is " + "".join(draw.choice(letters) for _ in range(80))

    guesses, misses = [secret() for _ in range(PROBES)], [secret() for _ in range(PROBES)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda each: world.told(each, "ann"), guesses))
    assert world.told(guesses[-1], "ann")[0] > 0  # so there is something to find
    order = [("guess", each) for each in guesses] + [("miss", each) for each in misses]
    draw.shuffle(order)
    told: dict[str, set[str]] = {"guess": set(), "miss": set()}
    headers = {"Authorization": f"Bearer {world.running.keys['carl']}"}
    with httpx.Client(headers=headers, timeout=120) as client, ThreadPoolExecutor(4) as pool:

        def ask(text: str) -> httpx.Response:
            message = {"model": NAMESPACE, "messages": [{"role": "user", "content": text}], "max_tokens": 1}
            return client.post(f"{world.base}/v1/chat/completions", json=message)

        for (kind, _), answer in zip(order, pool.map(ask, [text for _, text in order]), strict=True):
            body = answer.json()
            own = body["kvgrove"]
            assert own["reused_tokens"] == body["usage"]["prompt_tokens_details"]["cached_tokens"]
            told_by_header = re.sub(r"\d+", "#", answer.headers.get("x-kvgrove-cache", ""))
            shape = (
                told_by_header,
                sorted(answer.headers),
                sorted(body),
                sorted(body["usage"]),
                sorted(own),
                sorted(own["missed"]),
            )
            told[kind].add(repr((answer.status_code, shape, own["reused_tokens"], own.get("tier"), own.get("node"))))
    assert told["guess"] == told["miss"]


def test_a_revoked_key_is_refused_on_a_connection_that_is_open_and_lets_its_answer_end(world: World) -> None:
    world.declare()
    secret = api_keys.new_secret()
    file = world.root / "keys.yaml"
    api_keys.create(file, secret=secret, key_id="doomed", tenant="acme", user="d", scopes=["staff"])
    message = {"model": NAMESPACE, "messages": [{"role": "user", "content": "tell me"}], "max_tokens": 1}
    with httpx.Client(base_url=world.base, headers={"x-api-key": secret}, timeout=120) as client:
        assert client.post("/v1/chat/completions", json=message).status_code == 200
        with client.stream(
            "POST", "/v1/chat/completions", json=message | {"stream": True, "max_tokens": 200}
        ) as stream:
            lines = stream.iter_lines()
            next(lines)
            api_keys.revoke(file, "doomed")
            refused = httpx.get(f"{world.base}/v1/models", headers={"x-api-key": secret}, timeout=60)
            assert refused.status_code == 401
            assert list(lines)[-2] == "data: [DONE]"  # it was let in; its answer goes to its end
        assert client.get("/v1/models").status_code == 401


def test_tokens_of_an_issuer_speak_for_tenant_user_and_scopes(world: World) -> None:
    world.declare(access="{tenants: [acme], scopes: [staff]}")
    mine = world.token(sub="ann", org="acme", scope="openid staff")
    question = "by token " + LONG
    world.told(question, mine)
    reused, missed, _ = world.told(question, mine)
    assert reused > 0
    assert "scope_denied" not in missed
    assert world.told(question, world.token(sub="x", org="acme", scope="openid"))[1].keys() == {"scope_denied"}
    assert world.send(question, world.token(sub="ann", org="globex", scope="staff")).status_code == 403
    operator = world.token(sub="o", org="operations", groups=["sre"])
    assert httpx.get(f"{world.base}/metrics", headers={"Authorization": f"Bearer {operator}"}).status_code == 200
    assert httpx.get(f"{world.base}/metrics", headers={"Authorization": f"Bearer {mine}"}).status_code == 403
    world.issuer.make("second")
    world.issuer.publish("first", "second")
    assert world.send("x", world.token("second", sub="ann", org="acme", scope="staff")).status_code == 200  # rotated
    late = world.send("x", world.token("second", sub="ann", org="acme", exp=1))
    assert (late.status_code, late.json()["error"]["code"]) == (401, "token_expired")
    record = world.wait_audited(lambda each: each.get("kind") == "jwt" and each.get("namespace") == NAMESPACE)
    assert record["credential"].startswith("https://id.example#")


def test_tenants_are_held_to_their_allowances_in_the_dialect_they_speak(world: World) -> None:
    world.declare()
    answers = [world.send("hi", "brief") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[2].json()["error"]["code"] == "rate_limit_exceeded"
    assert 1 <= int(answers[2].headers["Retry-After"]) <= 30
    theirs = world.send("hi", "brief", path="messages")
    assert (theirs.status_code, theirs.json()["error"]["type"]) == (429, "rate_limit_error")
    assert int(theirs.headers["Retry-After"]) >= 1
    assert world.send("hi", "ann").status_code == 200
    too_long = world.send(LONG, "sparing")
    assert (too_long.status_code, too_long.json()["error"]["code"]) == (400, "prompt_above_rate_limit")
    text = "some words that count " * 5
    assert 429 in {world.send(text, "sparing").status_code for _ in range(6)}
    counted = world.get("/metrics", "root").text
    for limit in ("requests", "prompt_tokens"):
        assert f'kvgrove_gateway_rate_limited_total{{limit="{limit}"}}' in counted


def test_i12_quiet_nothing_that_is_emitted_holds_prompt_text_keys_or_secrets(world: World) -> None:
    """Canaries wherever a caller or an operator can put text, then every log, metric, status and record."""
    world.declare(text=f"The text of a prefix says {CANARY}.")
    token = world.token(sub="ann", org="acme", scope="staff", note=CANARY)
    for who in ("ann", token):
        assert world.send(f"remember {CANARY}", who, user=CANARY, kvgrove={"session": CANARY}).status_code == 200
        world.send(f"remember {CANARY}", who, kvgrove={"prefix": "support"})
    world.send(CANARY, "ann", path="messages", system=CANARY, metadata={"user_id": CANARY})
    world.send(CANARY, "ann", model=CANARY)
    world.send(CANARY, "ann", headers={"X-Note": CANARY, "traceparent": CANARY}, kvgrove={"documents": [CANARY]})
    world.send(CANARY, CANARY)
    world.send(CANARY, f"{CANARY}.{CANARY}.{CANARY}")
    world.get(f"/v1/models/{CANARY}", "ann")
    world.get(f"/{CANARY}?q={CANARY}", "ann")
    world.get(f"/admin/{CANARY}", "root")
    httpx.request(
        CANARY.upper(), f"{world.base}/v1/models", headers={"x-api-key": world.running.keys["ann"]}, timeout=60
    )
    world.declare(privacy="{erasures: [{name: gone, tenant: globex}]}", text=f"The text says {CANARY}.")
    erased = world.wait_audited(lambda each: each["event"] == "erase")
    assert erased["namespace_uid"]
    emitted = {
        "metrics": world.get("/metrics", "root").text,
        "audit": world.state.audit_file("gateway-0").read_text(),
        "status": world.state.status_file.read_text(),
        **{file.name: file.read_text() for file in (world.root / "state" / "logs").iterdir()},
    }
    assert {"gateway-0.log", "node-0.log", "gateway-0.audit.jsonl"} <= emitted.keys()
    secrets = [CANARY, token, token.split(".")[2], *world.running.keys.values()]
    for name, text in emitted.items():
        assert text or name.endswith(".log")
        assert [secret[:12] for secret in secrets if secret in text] == [], name
        assert "Traceback" not in text, name


def test_the_audit_log_is_reopened_and_names_who_did_what(world: World) -> None:
    world.declare()
    file = world.state.audit_file("gateway-0")
    rotated = file.with_name("rotated.jsonl")
    world.told("hello", "ann")
    world.wait_audited(lambda each: each.get("credential") == "ann")
    before = len(file.read_text().splitlines())
    file.rename(rotated)
    world.running.do_now(world.running.fleet.child("gateway-0").signal, signal.SIGHUP)
    deadline = time.monotonic() + STEP_SECONDS
    while not file.exists():
        assert time.monotonic() < deadline
        world.told("hello again", "bob")
    record = world.wait_audited(lambda each: each.get("credential") == "bob")
    assert record.items() >= {
        "event": "request", "member": "gateway-0", "method": "POST", "route": "/v1/chat/completions", "status": 200,
        "client": "127.0.0.1", "kind": "api_key", "tenant": "acme", "user": "bob", "namespace": NAMESPACE,
    }.items()  # fmt: skip
    assert len(rotated.read_text().splitlines()) >= before
    numbers = [json.loads(line)["seq"] for path in (rotated, file) for line in path.read_text().splitlines()]
    assert numbers == list(range(1, len(numbers) + 1))  # nothing was lost
    assert file.stat().st_mode & 0o077 == 0
