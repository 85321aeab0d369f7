"""Probes over a real socket, and what events count as news."""

import asyncio
from typing import Any

from kvgrove_operator.handlers import Changes
from kvgrove_operator.probes import Probes


async def ask(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    return answer.split(b"\r\n")[0]


def test_alive_and_ready_are_different_questions() -> None:
    async def story() -> list[bytes]:
        server = await Probes(lambda: True, lambda: False).serve("127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            return [
                await ask(port, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                for path in ("/healthz", "/readyz", "/secrets")
            ] + [await ask(port, b"nonsense\r\n")]

    assert asyncio.run(story()) == [
        b"HTTP/1.1 200 OK",
        b"HTTP/1.1 503 Service Unavailable",
        b"HTTP/1.1 404 Not Found",
        b"HTTP/1.1 404 Not Found",
    ]


def declared(**metadata: Any) -> dict[str, Any]:
    return {"kind": "ModelVersion", "metadata": {"name": "m", "uid": "u", "generation": 1} | metadata}


def test_an_echo_of_our_own_status_is_no_news() -> None:
    changes = Changes()
    assert changes.of_declared(None, declared())
    assert not changes.of_declared("MODIFIED", declared(resourceVersion="9"))
    assert changes.of_declared("MODIFIED", declared(generation=2))
    assert changes.of_declared("MODIFIED", declared(generation=2, deletionTimestamp="now"))
    assert changes.of_declared("DELETED", declared(generation=2, deletionTimestamp="now"))
    assert changes.of_declared("ADDED", declared(uid="another"))


def test_a_heartbeat_of_a_node_is_no_news_and_a_taint_is() -> None:
    changes = Changes()
    node: dict[str, Any] = {"metadata": {"name": "n", "uid": "u", "labels": {"a": "b"}}, "spec": {}}
    assert changes.of_node("ADDED", node)
    assert not changes.of_node("MODIFIED", node | {"status": {"conditions": []}})
    assert changes.of_node("MODIFIED", node | {"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}})
