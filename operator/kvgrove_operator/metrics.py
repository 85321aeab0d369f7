"""The operator's own figures for Prometheus, read from the counters of its parts when somebody asks."""

from collections.abc import Callable, Iterable, Mapping
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
        yield GaugeMetricFamily("kvgrove_operator_leading", "1: it leads, 0: it stands by.", value=float(self._leads()))
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
        fleet, work = self._fleet, self._workers.counters
        members = GaugeMetricFamily("kvgrove_operator_members", "Connected members of the fleet.", labels=["role"])
        roles = [view.hello.role for view in fleet.views().values()]
        for role in (DAEMON, GATEWAY):
            members.add_metric([role], roles.count(role))
        yield members
        refused = CounterMetricFamily(
            "kvgrove_operator_peers_refused",
            "Peers that did not get into the fleet link: no_curve, unknown_key, broken_off or wrong_role.",
            labels=["reason"],
        )
        link = fleet.link_counters
        for reason, count in {**link.refused, "wrong_role": link.wrong_role}.items():
            refused.add_metric([reason], count)
        yield refused
        gauges = {
            "namespaces": ("Namespaces that are planned.", len(fleet.state.namespaces)),
            "erasing_namespaces": ("Deleted namespaces that are not erased everywhere.", len(fleet.state.removed)),
            "queue_keys": ("Keys that wait to be looked at.", len(self._queue)),
            "plan_age_seconds": ("Since everything declared was last read.", boottime() - self._workers.planned_at),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(f"kvgrove_operator_{name}", text, value=value)
        counters = {
            "plans": ("Plans issued.", fleet.counters.plans),
            "record_writes": ("Writes of what members may hold.", fleet.counters.persists),
            "api_waits": ("Tries to make a fact durable that found no API server.", fleet.counters.waits),
            "reconciles": ("Pieces of work that were done.", work.done),
            "reconcile_failures": ("Pieces of work that failed and were retried.", work.failed),
            "reconcile_exhausted": ("Times that retries reached their bound.", work.exhausted),
            "queue_refused": ("Keys that found the queue full.", self._queue.refused),
            "status_writes": ("Statuses written.", self._objects.status_writes),
            "api_writes": ("Calls to the API server that change something, renewals included.", self._kube.writes),
        }
        for name, (text, value) in counters.items():
            yield CounterMetricFamily(f"kvgrove_operator_{name}", text, value=value)
        yield from families({**self._statuses}, datetime.now(UTC))  # a copy: the loop writes it meanwhile
