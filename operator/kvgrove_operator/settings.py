"""The operator's command line, checked before anything is started. Nothing here opens a file or a socket."""

import argparse
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvgrove_link.addresses import stays_here

_RIGHTS = {
    "host-models": "access to the model root of their node: models come from volume claims",
    "host-state": "access to the state root of their node: caches on disk end with the Pod",
    "shared-memory": "shared memory of their own: pools have the runtime's 64 MiB",
}
_DURATION = re.compile("([0-9]+(ms|s|m|h))+", re.ASCII)
_DNS_LABEL = re.compile("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)


@dataclass(frozen=True)
class LeaderTimings:
    """All in seconds."""

    duration: float = 15.0
    """How long the Lease of a leader that is not heard keeps others from leading."""
    renewal: float = 3.0
    """Between two renewals, and between two looks of one who waits."""

    @property
    def trusted(self) -> float:
        """How long after the sending of a renewal a leader believes in it: less than others wait, by a third."""
        return self.duration * 2 / 3


@dataclass(frozen=True)
class DaemonRights:
    """What a daemon's Pod may have that Pod Security `restricted` keeps from others. Without any it is restricted."""

    host_models: bool = True
    """The model root of its node, read only: without it models come from volume claims alone."""
    host_state: bool = True
    """The state root of its node: without it, caches on disk and all that was seen end with the Pod."""
    shared_memory: bool = True
    """``/dev/shm`` as large as memory: without it pools have the runtime's 64 MiB."""
    user: int | None = None
    """Numeric user of the process; 0 may write directories of the node that belong to root. None: the image's."""


@dataclass(frozen=True)
class DaemonSettings:
    """What the Pods of daemons are made of."""

    image: str = "ghcr.io/kvgrove/kvgrove-daemon:0.1.0"
    command: tuple[str, ...] = ("python", "-m", "kvgrove_daemon")
    listen: str = "tcp://$(POD_IP):7401"
    """Where gateways reach it; the Pod's variables may be named."""
    plain_links: bool = False
    """Links without keys."""
    control: str = ""
    """Where members dial the operator."""
    model_root: str = "/var/lib/kvgrove/models"
    """Directory of every node with models and with the Hugging Face cache (``hub`` below it), mounted at that path."""
    state_root: str = "/var/lib/kvgrove/state"
    """Directory of every node for what a daemon must remember."""
    metrics_port: int = 0
    """Of the Prometheus endpoint on the Pod's address; 0: none."""
    service_account: str = ""
    """Empty: the namespace's default one. Daemons have no right in the cluster either way, and no token."""
    rights: DaemonRights = DaemonRights()


@dataclass(frozen=True)
class MonitorSettings:
    """How Prometheus is told to scrape daemons."""

    interval: str = "30s"
    """Between scrapes, as Prometheus writes durations."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """By which a Prometheus selects PodMonitors."""


@dataclass(frozen=True)
class Settings:
    namespaces: tuple[str, ...]
    """Watched; empty: all."""
    own_namespace: str
    """Where Lease, Secrets and workloads live."""
    listen: str
    """ZeroMQ address of the fleet link."""
    identity: str
    """Names this process among operators; empty: made from the host's name."""
    plain_links: bool = False
    """The fleet link without keys: on one machine alone."""
    lease_name: str = "kvgrove-operator"
    leader: LeaderTimings = LeaderTimings()
    daemons: DaemonSettings = DaemonSettings()
    probes: tuple[str, int] | None = None
    metrics: tuple[str, int] | None = None
    alert_thresholds: bool = False
    """Whether to keep a PrometheusRule with the thresholds of ``spec.alerts``."""
    pod_monitors: MonitorSettings | None = None
    """A PodMonitor for each placement of daemons; None: there are none."""
    resync: float = 300.0
    """Seconds between two looks at everything, whatever was heard."""
    verbose: bool = False


def parse(arguments: Sequence[str] | None = None) -> Settings:
    """Read ``arguments`` (default: the process's); exits with one line on stderr if one is off."""
    timings, daemons = LeaderTimings(), DaemonSettings()
    parser = argparse.ArgumentParser(
        prog="python -m kvgrove_operator", description="Plans prompt caches for a fleet from its custom resources."
    )
    parser.add_argument(
        "--namespace",
        action="append",
        default=[],
        type=_label,
        metavar="NAME",
        help="watch this Kubernetes namespace (may be repeated; default: all of them)",
    )
    parser.add_argument(
        "--own-namespace", required=True, type=_label, metavar="NAME", help="where Lease, Secrets and daemons live"
    )
    parser.add_argument(
        "--listen", default="tcp://*:7400", type=_endpoint, metavar="ADDRESS", help="fleet link (default: %(default)s)"
    )
    parser.add_argument(
        "--advertise",
        type=_endpoint,
        metavar="ADDRESS",
        help="where daemons dial that link (default: the Service kvgrove-operator of --own-namespace, port 7400)",
    )
    parser.add_argument(
        "--plain-links", action="store_true", help="links without keys: on one machine (loopback) only, for trying out"
    )
    parser.add_argument("--identity", default="", help="this process among operators (default: from the host's name)")
    parser.add_argument("--lease-name", default="kvgrove-operator", type=_label, metavar="NAME")
    parser.add_argument(
        "--lease-duration", default=timings.duration, type=_positive, metavar="SECONDS", help="of the leader's Lease"
    )
    parser.add_argument("--lease-renewal", default=timings.renewal, type=_positive, metavar="SECONDS")
    parser.add_argument("--daemon-image", default=daemons.image, metavar="IMAGE")
    parser.add_argument(
        "--daemon-command", default=shlex.join(daemons.command), metavar="COMMAND", help="in the image, quoted as in sh"
    )
    parser.add_argument(
        "--daemon-listen",
        default=daemons.listen,
        type=_endpoint,
        metavar="ADDRESS",
        help="where gateways reach a daemon; may name $(POD_IP) (default: %(default)s)",
    )
    parser.add_argument(
        "--model-root", default=daemons.model_root, type=_directory, metavar="DIR", help="of every node, with models"
    )
    parser.add_argument(
        "--state-root", default=daemons.state_root, type=_directory, metavar="DIR", help="of every node, for daemons"
    )
    parser.add_argument(
        "--daemon-metrics-port", default=0, type=_port, metavar="PORT", help="of daemons' metrics (default: none)"
    )
    parser.add_argument(
        "--daemon-service-account", default="", metavar="NAME", help="of daemons' Pods (default: the namespace's own)"
    )
    parser.add_argument(
        "--daemon-user", type=_user, metavar="UID", help="user of daemons' processes (default: the image's)"
    )
    for right, lost in _RIGHTS.items():
        parser.add_argument(f"--without-{right}", action="store_true", help=f"daemons get no {lost}")
    parser.add_argument(
        "--alert-thresholds",
        action="store_true",
        help="keep a PrometheusRule with the thresholds of all namespaces in --own-namespace",
    )
    parser.add_argument(
        "--pod-monitors", action="store_true", help="keep a PodMonitor for the daemons of each placement"
    )
    parser.add_argument("--pod-monitor-interval", default="30s", type=_duration, metavar="30s", help="between scrapes")
    parser.add_argument(
        "--pod-monitor-label",
        action="append",
        default=[],
        type=_key_value,
        metavar="KEY=VALUE",
        help="by which a Prometheus selects them (may be repeated)",
    )
    parser.add_argument(
        "--probes", type=_host_port, metavar="HOST:PORT", help="serve /healthz and /readyz here (default: nowhere)"
    )
    parser.add_argument(
        "--metrics", type=_host_port, metavar="HOST:PORT", help="serve Prometheus metrics here (default: nowhere)"
    )
    parser.add_argument("--resync", default=300.0, type=_positive, metavar="SECONDS", help="between two full looks")
    parser.add_argument("--verbose", action="store_true", help="log what each reconcile did")
    found = parser.parse_args(arguments)
    leader = LeaderTimings(duration=found.lease_duration, renewal=found.lease_renewal)
    if leader.renewal * 2 > leader.trusted:
        parser.error(
            f"--lease-renewal {leader.renewal:g}: at most a third of --lease-duration ({leader.duration:g}) is needed, "
            "so that one renewal may fail; lower it or raise the duration"
        )
    if leader.duration != int(leader.duration):
        parser.error(f"--lease-duration {leader.duration:g}: Leases count whole seconds; round it")
    if found.plain_links and not stays_here(found.listen):
        parser.error(f"--plain-links: --listen {found.listen} can be reached from elsewhere; use a loopback address")
    if found.pod_monitors and not found.daemon_metrics_port:
        parser.error("--pod-monitors: daemons have no metrics to scrape; set --daemon-metrics-port")
    command = tuple(shlex.split(found.daemon_command))
    if not command:
        parser.error("--daemon-command: it is empty; give the program of the image that runs a daemon")
    default_control = f"tcp://kvgrove-operator.{found.own_namespace}.svc:7400"
    return Settings(
        namespaces=tuple(sorted(set(found.namespace))),
        own_namespace=found.own_namespace,
        listen=found.listen,
        identity=found.identity,
        lease_name=found.lease_name,
        leader=leader,
        plain_links=found.plain_links,
        daemons=DaemonSettings(
            image=found.daemon_image,
            command=command,
            plain_links=found.plain_links,
            listen=found.daemon_listen,
            control=found.advertise or default_control,
            model_root=found.model_root,
            state_root=found.state_root,
            metrics_port=found.daemon_metrics_port,
            service_account=found.daemon_service_account,
            rights=DaemonRights(
                host_models=not found.without_host_models,
                host_state=not found.without_host_state,
                shared_memory=not found.without_shared_memory,
                user=found.daemon_user,
            ),
        ),
        probes=found.probes,
        metrics=found.metrics,
        alert_thresholds=found.alert_thresholds,
        pod_monitors=MonitorSettings(found.pod_monitor_interval, dict(found.pod_monitor_label))
        if found.pod_monitors
        else None,
        resync=found.resync,
        verbose=found.verbose,
    )


def _label(text: str) -> str:
    if _DNS_LABEL.fullmatch(text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no name: 1 to 63 lower-case letters, digits and inner dashes")
    return text


def _endpoint(text: str) -> str:
    if re.fullmatch(r"tcp://[^/\s]+:(\d+|\*)", text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no endpoint: write tcp://HOST:PORT")
    return text


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: give seconds above 0, at most a day")
    return value


def _duration(text: str) -> str:
    if _DURATION.fullmatch(text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration: write it like 30s or 1m30s")
    return text


def _key_value(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is no label: write KEY=VALUE")
    return key, value


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 <= int(text) <= 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: give 1 to 65535, or 0 for none")
    return int(text)


def _user(text: str) -> int:
    if not text.isdecimal() or int(text) >= 2**31:
        raise argparse.ArgumentTypeError(f"{text!r} is no numeric user: give 0 for root, or the UID of another")
    return int(text)


def _directory(text: str) -> str:
    if not text.startswith("/") or ".." in text.split("/"):
        raise argparse.ArgumentTypeError(f"{text!r}: give an absolute path without ..")
    return text.rstrip("/")


def _host_port(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r}: give HOST:PORT, e.g. 0.0.0.0:8081")
    return host.strip("[]"), int(port)
