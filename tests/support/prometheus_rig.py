"""A real Prometheus with a real Alertmanager behind it, that watch a real fleet in a time of their own: a minute of the
rules is a second.

Every duration of the rules is divided by sixty, and nothing else of them is touched: the ranges, offsets and ``for``,
and the ten minutes that `KvgroveEvictionStorm` writes as 600 seconds. What the rules compare with stays as it is:
shares, tokens a second, and the ages that the operator tells. Parts are scraped twice a second, as PodMonitors of the
chart do every half minute.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import chart_tools
import httpx
import yaml
from chart_rig import rule_files
from ports import free_port

SECONDS_OF = {"d": 86_400, "h": 3_600, "m": 60}
QUICKER = 60
_DURATIONS = re.compile(r"(?P<before>\[|offset |for: )(?P<count>\d+)(?P<unit>[dhm])(?=[\])\n])")
_AS_NUMBER = re.compile(r"(?<=:rate5m \* )600(?= >)")

Labels = Mapping[str, str]


def quickened(text: str) -> str:
    """Rules whose durations are a sixtieth: see the module."""

    def shorter(found: re.Match[str]) -> str:
        return f"{found['before']}{int(found['count']) * SECONDS_OF[found['unit']] // QUICKER}s"

    return _AS_NUMBER.sub(str(600 // QUICKER), _DURATIONS.sub(shorter, text))


@dataclass(frozen=True)
class Target:
    """What is scraped, with the labels that a PodMonitor gives it. ``token``: for parts that ask for one."""

    address: str
    labels: Labels
    token: str = ""


@dataclass(frozen=True)
class Watch:
    prometheus: str
    alertmanager: str

    def firing(self) -> set[tuple[str, str, str]]:
        """(alert, namespace or node, cause) of all that Alertmanager has and that is not over."""
        found = httpx.get(f"{self.alertmanager}/api/v2/alerts", params={"active": "true"}, timeout=10).json()
        labels = [each["labels"] for each in found]
        return {
            (each["alertname"], each.get("namespace") or each.get("node", ""), each.get("cause", "")) for each in labels
        }

    def query(self, expression: str) -> list[tuple[Labels, float]]:
        """Labels and value of each sample that there is now; NaN is a sample too."""
        answer = self._ask("query", query=expression)
        return [(each["metric"], float(each["value"][1])) for each in answer["result"]]

    def rule_files(self) -> set[str]:
        """Those that are in force."""
        return {str(each["file"]) for each in self._ask("rules")["groups"]}

    def label_values(self, series: str, label: str) -> list[str]:
        """What Grafana's ``label_values(series, label)`` offers."""
        answer = httpx.get(
            f"{self.prometheus}/api/v1/label/{label}/values", params={"match[]": series}, timeout=10
        ).json()
        assert answer["status"] == "success", answer
        return [str(each) for each in answer["data"]]

    def _ask(self, what: str, **parameters: str) -> dict[str, Any]:
        answer = httpx.get(f"{self.prometheus}/api/v1/{what}", params=parameters, timeout=10).json()
        assert answer["status"] == "success", f"{parameters}: {answer}"
        return dict(answer["data"])


@contextmanager
def watching(folder: Path, targets: Sequence[Target], *more_rules: Mapping[str, Any]) -> Iterator[Watch]:
    """``more_rules``: beside the chart's, as in the ``spec`` of a PrometheusRule.

    Rules are in force once all targets are scraped: a new Prometheus looks for targets five seconds after it has begun
    to evaluate rules. Of five minutes that an alert waits that is nothing; of five seconds it is all.

    Raises `chart_tools.ToolProblem` where a program cannot be had.
    """
    prometheus, alertmanager = chart_tools.prometheus(), chart_tools.alertmanager()
    folder.mkdir()
    ports = free_port(), free_port()
    _configure_alertmanager(folder)
    _configure(folder, targets, [], alertmanager=ports[1])
    rules = _write_rules(folder, more_rules)
    with ExitStack() as stack:
        for program, *options in (
            (alertmanager, f"--config.file={folder}/alertmanager.yaml", f"--storage.path={folder}/alerts",
             f"--web.listen-address=127.0.0.1:{ports[1]}", "--cluster.listen-address="),
            (prometheus, f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/series",
             f"--web.listen-address=127.0.0.1:{ports[0]}"),
        ):  # fmt: skip
            log = stack.enter_context((folder / f"{program.name}.log").open("wb"))
            process = subprocess.Popen([str(program), *options], stdout=log, stderr=log)
            stack.callback(process.wait, 30)
            stack.callback(process.terminate)
        for port, log_file in zip(ports, (f"{prometheus.name}.log", f"{alertmanager.name}.log"), strict=True):
            _wait_until(lambda port=port: _is_ready(f"http://127.0.0.1:{port}/-/ready"), folder / log_file)
        watch, log_file = Watch(*(f"http://127.0.0.1:{port}" for port in ports)), f"{prometheus.name}.log"
        _wait_until(lambda: sum(up for _, up in watch.query("up")) == len(targets), folder / log_file)
        _configure(folder, targets, rules, alertmanager=ports[1])
        process.send_signal(signal.SIGHUP)
        _wait_until(lambda: watch.rule_files() == {str(each) for each in rules}, folder / log_file)
        yield watch


def _write_rules(folder: Path, more_rules: Sequence[Mapping[str, Any]]) -> list[Path]:
    (folder / "rules").mkdir()
    for path in rule_files():
        (folder / "rules" / path.name).write_text(quickened(path.read_text()))
    for number, rules in enumerate(more_rules):
        (folder / "rules" / f"more-{number}.yaml").write_text(json.dumps(rules))
    return sorted((folder / "rules").glob("*.yaml"))


def _configure(folder: Path, targets: Sequence[Target], rules: Sequence[Path], *, alertmanager: int) -> None:
    prometheus = {
        "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"},
        "rule_files": [str(each) for each in rules],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{alertmanager}"]}]}]},
        "scrape_configs": [
            {
                "job_name": each.labels["pod"],
                "honor_labels": True,
                "static_configs": [{"targets": [each.address], "labels": {**each.labels}}],
                **({"authorization": {"credentials": each.token}} if each.token else {}),
            }
            for each in targets
        ],
    }
    (folder / "prometheus.yaml").write_text(json.dumps(prometheus))


def _configure_alertmanager(folder: Path) -> None:
    route = {"receiver": "nobody", "group_wait": "1s", "group_interval": "1s", "repeat_interval": "1h"}
    (folder / "alertmanager.yaml").write_text(yaml.safe_dump({"route": route, "receivers": [{"name": "nobody"}]}))


def _is_ready(address: str) -> bool:
    try:
        return httpx.get(address, timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def _wait_until(reached: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < deadline, f"never ready:\n{log.read_text(errors='replace')[-2000:]}"
        time.sleep(0.2)
