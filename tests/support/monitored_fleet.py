"""A fleet as Prometheus sees it, and a real Prometheus and Alertmanager that watch it, in a time of their own.

The numbers are counted and served by the parts' own metrics; what drives them is a made-up load. The chart's rules are
loaded as they are but for their times, which are seconds here: a day before takes twenty of them.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import chart_tools
import httpx
import yaml
from chart_rig import rule_files
from known_metrics import operator_metrics
from ports import free_port
from prometheus_client import start_http_server

from kvgrove_crds.conditions import NAMESPACE_CONDITIONS, Condition
from kvgrove_crds.namespace_status import PromptCacheNamespaceStatus
from kvgrove_crds.reasons import ConditionReason
from kvgrove_gateway.metrics import Metrics
from kvgrove_protocol.reasons import MissReason

TIMES = {"1d": "20s", "30m": "20s", "15m": "10s", "10m": "5s", "5m": "5s", "2m": "2s"}
_TOKENS_PER_SECOND = 1000
_TICK_SECONDS = 0.2


def quickened(text: str) -> str:
    """Rules with their times in seconds."""
    for slow, quick in TIMES.items():
        for before, after in (("[", "]"), ("offset ", ")"), ("for: ", "\n")):
            text = text.replace(f"{before}{slow}{after}", f"{before}{quick}{after}")
    return text


@dataclass
class Load:
    """What each namespace reuses of a thousand prompt tokens a second; the rest is missed for a reason."""

    metrics: Metrics
    shares: Mapping[str, tuple[float, MissReason]] = field(default_factory=dict)
    """Namespace -> (reused, why the rest is not). Replace it whole to change the load."""

    def run(self, stop: threading.Event) -> None:
        last = time.monotonic()
        while not stop.wait(_TICK_SECONDS):
            now = time.monotonic()
            prompt, last = (now - last) * _TOKENS_PER_SECOND, now
            for namespace, (reused, reason) in self.shares.items():
                self.metrics.prompt_tokens.labels(namespace).inc(prompt)
                self.metrics.reused_tokens.labels(namespace, "host").inc(prompt * reused)
                self.metrics.missed_tokens.labels(namespace, reason.value).inc(prompt * (1 - reused))
                for other in MissReason:  # a counter that has been there is there at 0 too
                    self.metrics.missed_tokens.labels(namespace, other.value).inc(0)


@dataclass(frozen=True)
class Watched:
    load: Load
    alertmanager: str

    def firing(self) -> set[tuple[str, str, str]]:
        """(alert, namespace, cause) of all that Alertmanager has and that is not over."""
        found = httpx.get(f"{self.alertmanager}/api/v2/alerts", params={"active": "true"}, timeout=10).json()
        return {
            (each["labels"]["alertname"], each["labels"].get("namespace", ""), each["labels"].get("cause", ""))
            for each in found
        }


@contextmanager
def watched_fleet(folder: Path, namespaces: tuple[str, ...]) -> Iterator[Watched]:
    """Raises `ToolProblem` where Prometheus cannot be had."""
    programs = chart_tools.prometheus(), chart_tools.alertmanager()
    load, stop = Load(Metrics()), threading.Event()
    statuses = {name: _settled() for name in namespaces}
    with ExitStack() as stack:
        targets = []
        for registry in (load.metrics.registry, operator_metrics(statuses).registry):
            server, _ = start_http_server(0, "127.0.0.1", registry=registry)
            stack.callback(server.server_close)
            stack.callback(server.shutdown)
            targets.append(f"127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=load.run, args=(stop,), daemon=True)
        thread.start()
        stack.callback(thread.join)
        stack.callback(stop.set)
        ports = free_port(), free_port()
        _configure(folder, targets, ports[1])
        for command in (
            [programs[1], f"--config.file={folder}/alertmanager.yaml", f"--storage.path={folder}/alerts",
             f"--web.listen-address=127.0.0.1:{ports[1]}", "--cluster.listen-address="],
            [programs[0], f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/series",
             f"--web.listen-address=127.0.0.1:{ports[0]}"],
        ):  # fmt: skip
            log = stack.enter_context((folder / f"{command[0].name}.log").open("wb"))  # type: ignore[union-attr]
            process = subprocess.Popen([str(each) for each in command], stdout=log, stderr=log)
            stack.callback(process.wait, 30)
            stack.callback(process.terminate)
        for port in ports:
            _wait_ready(f"http://127.0.0.1:{port}/-/ready")
        yield Watched(load, f"http://127.0.0.1:{ports[1]}")


def _configure(folder: Path, targets: list[str], alertmanager: int) -> None:
    for path in rule_files():
        (folder / path.name).write_text(quickened(path.read_text()))
    prometheus = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(folder / path.name) for path in rule_files()],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{alertmanager}"]}]}]},
        "scrape_configs": [{"job_name": "kvgrove", "honor_labels": True, "static_configs": [{"targets": targets}]}],
    }
    (folder / "prometheus.yaml").write_text(json.dumps(prometheus))
    route = {"receiver": "nobody", "group_wait": "1s", "group_interval": "1s", "repeat_interval": "1h"}
    (folder / "alertmanager.yaml").write_text(yaml.safe_dump({"route": route, "receivers": [{"name": "nobody"}]}))


def _wait_ready(address: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            if httpx.get(address, timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        assert time.monotonic() < deadline, f"never ready: {address}"
        time.sleep(0.2)


def _settled() -> PromptCacheNamespaceStatus:
    """Of a namespace of which nothing is under way."""
    now = datetime.now(UTC)
    return PromptCacheNamespaceStatus(
        conditions=tuple(
            Condition(
                type=kind.value,
                status="False" if kind.value in ("Stalled", "Reconciling") else "True",
                last_transition_time=now,
                reason=ConditionReason.UP_TO_DATE,
            )
            for kind in NAMESPACE_CONDITIONS
        )
    )
