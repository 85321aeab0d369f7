"""The operator's own figures for Prometheus, read from the counters of its parts when somebody asks."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvgrove_crds.namespace_status import PromptCacheNamespaceStatus
from kvgrove_link.clock import boottime
from kvgrove_operator.fleet import Fleet
from kvgrove_operator.keys import Key
from kvgrove_operator.kube import Kube
from kvgrove_operator.namespace_metrics import families
from kvgrove_operator.objects import Objects
from kvgrove_operator.work_queue import WorkQueue
from kvgrove_operator.workers import Workers
from kvgrove_protocol.control import DAEMON, GATEWAY

_GAUGES = {
    "namespaces": "Namespaces that are planned.",
    "erasing_namespaces": "Deleted namespaces that are not erased everywhere.",
    "queue_keys": "Keys that wait to be looked at.",
    "plan_age_seconds": "Seconds since everything declared was last read.",
}
_COUNTERS = {
    "plans": "Plans issued.",
    "record_writes": "Writes of what members may hold.",
    "api_waits": "Tries to make a fact durable that found no API server.",
    "reconciles": "Pieces of work that were done.",
    "reconcile_failures": "Pieces of work that failed and were retried.",
    "reconcile_exhausted": "Times that retries reached their bound.",
    "queue_refused": "Keys that found the queue full.",
    "status_writes": "Statuses written.",
    "api_writes": "Calls to the API server that change something, renewals included.",
}


@dataclass(frozen=True)
class Figures:
    """What an operator counts at one moment.

    ``members``: by role; ``refused``: peers, by reason; ``counted``: names of gauges and counters -> value.
    """

    members: Mapping[str, int]
    refused: Mapping[str, int]
    counted: Mapping[str, float]


NOTHING = Figures({}, {}, {})
"""Of an operator to which nothing has happened."""


def own_families(figures: Figures) -> Iterator[Metric]:
    """All but those of namespaces. Pure."""
    members = GaugeMetricFamily("kvgrove_operator_members", "Connected members of the fleet.", labels=["role"])
    for role, count in figures.members.items():
        members.add_metric([role], count)
    yield members
    refused = CounterMetricFamily(
        "kvgrove_operator_peers_refused",
        "Peers that did not get into the fleet link: no_curve, unknown_key, broken_off or wrong_role.",
        labels=["reason"],
    )
    for reason, count in figures.refused.items():
        refused.add_metric([reason], count)
    yield refused
    for name, text in _GAUGES.items():
        yield GaugeMetricFamily(f"kvgrove_operator_{name}", text, value=figures.counted.get(name, 0))
    for name, text in _COUNTERS.items():
        yield CounterMetricFamily(f"kvgrove_operator_{name}", text, value=figures.counted.get(name, 0))


def leading(leads: bool) -> Metric:
    """Shown also by a process that stands by."""
    return GaugeMetricFamily("kvgrove_operator_leading", "1: it leads, 0: it stands by.", value=float(leads))


class ProcessMetrics(Collector):
    """What a process answers a scrape with: whether it leads, and all figures of the session in which it does.

    One that stands by answers too: to Prometheus nothing is amiss with it.
    """

    def __init__(self, leads: Callable[[], bool]) -> None:
        self._leads = leads
        self.session: Collector | None = None
        """Of the term that is under way."""
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def collect(self) -> Iterable[Metric]:
        yield leading(self._leads())
        if (session := self.session) is not None:
            yield from session.collect()


class OperatorMetrics(Collector):
    """Labels are bounded: roles of members, namespaces of the plan, and closed lists."""

    def __init__(
        self,
        fleet: Fleet,
        queue: WorkQueue[Key],
        workers: Workers,
        objects: Objects,
        kube: Kube,
        *,
        statuses: Mapping[str, PromptCacheNamespaceStatus],
    ) -> None:
        """``statuses``: API name of each namespace -> its status; read anew at each scrape."""
        self._fleet, self._queue, self._workers, self._objects, self._kube = fleet, queue, workers, objects, kube
        self._statuses = statuses
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def collect(self) -> Iterable[Metric]:
        yield from own_families(self._figures())
        yield from families({**self._statuses}, datetime.now(UTC))  # a copy: the loop writes it meanwhile

    def _figures(self) -> Figures:
        fleet, work, link = self._fleet, self._workers.counters, self._fleet.link_counters
        roles = [view.hello.role for view in fleet.views().values()]
        return Figures(
            members={role: roles.count(role) for role in (DAEMON, GATEWAY)},
            refused={**link.refused, "wrong_role": link.wrong_role},
            counted={
                "namespaces": len(fleet.state.namespaces),
                "erasing_namespaces": len(fleet.state.removed),
                "queue_keys": len(self._queue),
                "plan_age_seconds": boottime() - self._workers.planned_at,
                "plans": fleet.counters.plans,
                "record_writes": fleet.counters.persists,
                "api_waits": fleet.counters.waits,
                "reconciles": work.done,
                "reconcile_failures": work.failed,
                "reconcile_exhausted": work.exhausted,
                "queue_refused": self._queue.refused,
                "status_writes": self._objects.status_writes,
                "api_writes": self._kube.writes,
            },
        )
