"""A gateway process without a fleet: what a connection may cost, how it goes, and who gets past its gate."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import pytest
from gateway_rig import OPERATOR, Stage, metrics, stage, wait_until

pytestmark = pytest.mark.e2e

MODELS = b"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ann\r\n"


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("alone")) as opened:
        yield opened


@pytest.fixture(scope="module")
def base(rig: Stage) -> str:
    return rig.gateway(
        "gateway-0",
        *("--head-timeout", "0.5", "--idle-timeout", "1", "--reader-timeout", "0.5", "--max-connections", "8"),
        *("--audit-log", str(rig.folder / "audit.jsonl")),
    )


@contextmanager
def connection(base: str) -> Iterator[socket.socket]:
    host, port = base.removeprefix("http://").split(":")
    with closing(socket.create_connection((host, int(port)), timeout=60)) as opened:
        yield opened


def read_all(opened: socket.socket) -> bytes:
    """Until the gateway ends the connection."""
    parts = []
    try:
        while part := opened.recv(65_536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def cut(base: str, reason: str) -> bool:
    return f'kvgrove_gateway_connections_cut_total{{reason="{reason}"}}' in metrics(base)


@pytest.mark.parametrize("sent", [b"", b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX-Sl"])
def test_half_a_head_does_not_hold_a_connection(base: str, sent: bytes) -> None:
    with connection(base) as opened:
        opened.sendall(sent)
        assert read_all(opened) == b""
    wait_until(lambda: cut(base, "slow_head"), "it is counted")


def test_a_drip_of_bytes_buys_no_more_time(base: str) -> None:
    with connection(base) as opened:
        opened.settimeout(0.1)
        opened.sendall(b"GET / HTTP/1.1\r\n")
        dripped = 0
        try:
            while dripped < 1000:
                opened.sendall(b"a")
                dripped += 1
                try:
                    if opened.recv(1) == b"":
                        break
                except TimeoutError:
                    pass
        except (ConnectionResetError, BrokenPipeError):
            pass
        assert dripped < 1000


def test_a_next_request_on_a_connection_is_bounded_too_and_an_idle_one_ends(base: str) -> None:
    for half in (b"GET /v1/mod", b""):
        with connection(base) as opened:
            opened.sendall(MODELS + b"\r\n")
            first = opened.recv(65_536)
            assert first.startswith(b"HTTP/1.1 200")
            opened.sendall(half)
            assert read_all(opened).count(b"HTTP/1.1") == 0


def test_who_does_not_read_is_cut_off_and_holds_nothing(base: str) -> None:
    """Many answers to one connection, none of them taken: pipelined, so that they pile up."""
    with connection(base) as opened:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        opened.settimeout(1)
        request = MODELS.replace(b"/v1/models", b"/metrics").replace(b"ann", OPERATOR.encode()) + b"\r\n"
        try:
            for _ in range(4000):
                opened.sendall(request)
        except (TimeoutError, ConnectionResetError, BrokenPipeError):
            pass
        wait_until(lambda: cut(base, "slow_reader"), "it is cut off")


def test_there_are_so_many_connections_and_no_more(base: str) -> None:
    opened = [socket.create_connection(tuple(base.removeprefix("http://").split(":")), timeout=60) for _ in range(9)]
    try:
        assert read_all(opened[8]) == b""
    finally:
        for each in opened:
            each.close()
    wait_until(lambda: cut(base, "too_many"), "it is counted")


def test_paths_that_nobody_thought_of_are_behind_the_gate(base: str) -> None:
    for path in ("/", "/v2/x", "//metrics", "/metrics/", "/ADMIN/x", "/admin%2fx", "/v1/models", "/docs", "/healthz/"):
        assert httpx.get(base + path, timeout=60).status_code == 401, path
    assert httpx.get(f"{base}/admin%2fx", headers={"x-api-key": "ann"}, timeout=60).status_code == 403
    assert httpx.get(f"{base}/healthz", timeout=60).status_code == 200
    assert httpx.get(f"{base}/readyz", timeout=60).status_code == 503
    theirs = httpx.post(f"{base}/v1/messages", content=b"x", timeout=60)
    assert (theirs.status_code, theirs.json()["type"]) == (401, "error")  # in the dialect of the path
    assert theirs.json()["error"]["type"] == "authentication_error"


def test_a_gateway_that_goes_says_so_before_it_closes_its_port(rig: Stage) -> None:
    base = rig.gateway("gateway-1", "--drain-notice", "4", "--drain", "8")
    with httpx.Client(base_url=base, headers={"x-api-key": "ann"}, timeout=60) as client:
        assert client.get("/v1/models").status_code == 200
        process = rig.processes.pop("gateway-1")
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: httpx.get(f"{base}/readyz", timeout=60).text == "draining\n", "it is not ready")
        refused = client.get("/v1/models")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert refused.headers["connection"] == "close"
        assert refused.headers["retry-after"] == "1"
        assert httpx.get(f"{base}/metrics", headers={"x-api-key": OPERATOR}, timeout=60).status_code == 200
    assert process.wait(60) == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{base}/readyz", timeout=60)


def test_bodies_and_requests_at_once_are_bounded_in_the_dialect_of_the_path(rig: Stage) -> None:
    """A body that does not come holds its place, and no longer than its caller stays."""
    base = rig.gateway("gateway-2", "--max-requests", "1", "--max-body-bytes", "200")
    headers = {"x-api-key": "ann"}
    large = httpx.post(f"{base}/v1/chat/completions", content=b"x" * 201, headers=headers, timeout=60)
    assert (large.status_code, large.json()["error"]["code"]) == (413, "body_too_large")
    with connection(base) as opened:  # nothing of it comes: an answer is there all the same
        opened.sendall(b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nx-api-key: ann\r\nContent-Length: 99999999\r\n\r\n")
        answer = b""
        while b"request_too_large" not in answer:
            part = opened.recv(65_536)
            assert part, answer
            answer += part
    with connection(base) as opened:
        opened.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nx-api-key: ann\r\nContent-Length: 9\r\n\r\n{")
        wait_until(lambda: "kvgrove_gateway_requests_in_flight 1.0" in metrics(base), "it has its place")
        for path, kind in (("chat/completions", "rate_limit_error"), ("messages", "rate_limit_error")):
            refused = httpx.post(f"{base}/v1/{path}", content=b"{}", headers=headers, timeout=60)
            assert (refused.status_code, refused.json()["error"]["type"]) == (429, kind)
            assert refused.headers["retry-after"] == "1"
    wait_until(lambda: "kvgrove_gateway_requests_in_flight 0.0" in metrics(base), "its place is free")
    assert httpx.post(f"{base}/v1/completions", content=b"{}", headers=headers, timeout=60).status_code == 400


def test_what_is_refused_is_audited_without_its_path(base: str, rig: Stage, tmp_path: Path) -> None:
    httpx.get(f"{base}/v1/models/my-secret-words", headers={"x-api-key": "wrong-key-value"}, timeout=60)
    httpx.get(f"{base}/my-secret-words", headers={"x-api-key": "ann"}, timeout=60)

    def records() -> list[dict[str, object]]:
        return [json.loads(line) for line in (rig.folder / "audit.jsonl").read_text().splitlines()]

    wait_until(lambda: any(each["status"] == 404 for each in records()), "both are written")
    denied = [each for each in records() if each["event"] == "denied"]
    assert {(each["code"], each["route"]) for each in denied} >= {("invalid_api_key", "-")}
    text = (rig.folder / "audit.jsonl").read_text()
    assert "my-secret-words" not in text
    assert "wrong-key-value" not in text


def test_settings_that_cannot_be_used_are_one_line(rig: Stage, tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text("jwt: [{issuer: {}}]\ndefault: {requests: 1}\n")
    for option, value, says in (
        ("--oidc", broken, "jwt.0.issuer.url"),
        ("--rate-limits", broken, "default.requests"),
        ("--audit-log", tmp_path / "no" / "where", "name a file in a writable folder"),
        ("--head-timeout", "0", "--head-timeout: must be above 0"),
        ("--drain-notice", "-1", "--drain-notice: must be 0 or above"),
    ):
        ended = subprocess.run(
            [sys.executable, "-m", "kvgrove_gateway", "--member", "g", "--control", "tcp://127.0.0.1:9",
             "--listen", "127.0.0.1:0", "--keys", str(rig.keys), "--plain-links", option, str(value)],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert ended.returncode == 2
        assert ended.stderr.count("\n") == 1
        assert says in ended.stderr
