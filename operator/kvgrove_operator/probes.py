"""``/healthz`` and ``/readyz`` over plain HTTP: alive is who gets things done, ready is who leads or would take over.

One that stands by is Ready, so that a Deployment of several is Available and a new Pod is there before an old one goes.
It does not listen on the fleet link: a member that is sent to it is turned away at once, and dials again.
"""

import asyncio
from collections.abc import Callable

_TIMEOUT_SECONDS = 5.0
_LONGEST = 8192


class Probes:
    """``alive`` and ``ready`` are asked at each request, and must not wait for anything."""

    def __init__(self, alive: Callable[[], bool], ready: Callable[[], bool]) -> None:
        self._answers = {"/healthz": alive, "/readyz": ready}

    async def serve(self, host: str, port: int) -> asyncio.Server:
        """Raises OSError where the address cannot be had. Close what it returns."""
        return await asyncio.start_server(self._answer, host, port, limit=_LONGEST)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                request = await reader.readuntil(b"\r\n")
                parts = request.decode("latin-1").split(" ")
                judge = self._answers.get(parts[1]) if len(parts) == 3 and parts[0] == "GET" else None
                status = "404 Not Found" if judge is None else ("200 OK" if judge() else "503 Service Unavailable")
                writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
                await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass  # whoever asked has gone, or is no prober
        finally:
            writer.close()
