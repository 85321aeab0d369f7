"""A real fleet for tests that are not coroutines: its event loop runs in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx

from kvgrove_cli import api_keys
from kvgrove_cli.durable import write_atomically
from kvgrove_cli.fleet import Fleet, FleetOptions
from kvgrove_cli.members import FleetShape

T = TypeVar("T")

STARTUP_SECONDS = 240.0
STEP_SECONDS = 60.0
NAMESPACE = "shop/assistant"

_MANIFESTS = """\
apiVersion: kvgrove.dev/v1alpha1
kind: ModelVersion
metadata: {{name: tiny}}
spec:
  source: {{hostPath: {{path: {model}}}}}
  pool: {{host: 64Mi}}
---
apiVersion: kvgrove.dev/v1alpha1
kind: PromptCacheNamespace
metadata: {{namespace: shop, name: assistant}}
spec:
  modelVersionRef: {{name: tiny}}
  freshness: {{lease: {lease}}}
  prefixes:
  - name: support
    version: v1
    text: You answer questions of customers about orders, returns, deliveries, repairs and rentals of bicycles.
    documents: [policy]
  documents:
  - name: policy
    version: {version}
    update: {update}
    configMapKeyRef: {{name: texts, key: policy}}
  warmup: {{prefixes: {warm}}}
---
apiVersion: v1
kind: ConfigMap
metadata: {{namespace: shop, name: texts}}
data: {{policy: "{policy}"}}
"""
POLICIES = {
    "v1": "Customers may return unused articles within 30 days after they have received them. No reason is needed. "
    * 2,
    "v2": "Customers may return articles within 14 days. The article must be complete and clean. " * 4,
}


def write_manifests(
    folder: Path,
    model: Path,
    *,
    version: str = "v1",
    lease: str = "5s",
    update: str = "CutFirst",
    warm: tuple[str, ...] = (),
) -> None:
    """One model, one namespace with a prefix and a document whose versions differ in length."""
    folder.mkdir(exist_ok=True)
    text = _MANIFESTS.format(
        model=model, version=version, policy=POLICIES[version], lease=lease, update=update, warm=[*warm]
    )
    write_atomically(folder / "all.yaml", text.encode())


class RunningFleet:
    """A fleet that is up, for the thread of a test."""

    def __init__(self, fleet: Fleet, loop: asyncio.AbstractEventLoop, keys: dict[str, str], manifests: Path) -> None:
        self.fleet, self.manifests = fleet, manifests
        self._loop, self.keys = loop, keys

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=STARTUP_SECONDS + STEP_SECONDS)

    def do_now(self, work: Any, *arguments: Any, **options: Any) -> Any:
        """Call a plain function in the fleet's loop."""

        async def call() -> Any:
            return work(*arguments, **options)

        return self.do(call())

    def post(self, base_url: str, *, tenant: str = "acme", question: str = "Hello?", **body: Any) -> httpx.Response:
        message: dict[str, Any] = {
            "model": NAMESPACE,
            "messages": [{"role": "user", "content": question}],
            "max_tokens": 4,
            "temperature": 0,
            "kvgrove": {"prefix": "support"},
        }
        headers = {"Authorization": f"Bearer {self.keys[tenant]}"}
        return httpx.post(f"{base_url}/chat/completions", json=message | body, headers=headers, timeout=STEP_SECONDS)


@contextmanager
def running_fleet(
    root: Path,
    model: Path,
    *,
    nodes: int = 2,
    gateways: int = 2,
    lease: str = "5s",
    more_keys: Mapping[str, Mapping[str, Any]] | None = None,
    **shape: Any,
) -> Iterator[RunningFleet]:
    """``more_keys``: name -> what `api_keys.create` is told beside it; ``shape``: further fields of FleetShape."""
    manifests, keys_file = root / "manifests", root / "keys.yaml"
    write_manifests(manifests, model, lease=lease)
    keys = {tenant: api_keys.new_secret() for tenant in ("acme", "globex")}
    for tenant, secret in keys.items():
        api_keys.create(keys_file, secret=secret, key_id=tenant, tenant=tenant)
    for name, fields in (more_keys or {}).items():
        keys[name] = api_keys.new_secret()
        api_keys.create(keys_file, secret=keys[name], key_id=name, **fields)
    options = FleetOptions(
        manifests, root / "state", FleetShape(nodes, gateways, threads_per_node=1, **shape), keys_file
    )
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="fleet")
    thread.start()
    fleet = Fleet(options)
    running = RunningFleet(fleet, loop, keys, manifests)
    try:
        running.do(fleet.__aenter__())
        try:
            running.do(fleet.ready(STARTUP_SECONDS))
            yield running
        finally:
            running.do(fleet.__aexit__(None, None, None))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
