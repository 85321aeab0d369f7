"""The daemon's command line, checked before anything is started."""

import argparse
import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kvgrove_daemon.kv_events.address import ExportRefused, ExportSettings, export_settings
from kvgrove_link.link_keys import LinkKeys
from kvgrove_link.security import LinksOpen, add_options, link_keys
from kvgrove_link.tracing import add_option
from kvgrove_protocol.control import DAEMON


@dataclass(frozen=True)
class Settings:
    member: str
    control: str
    listen: str
    state_dir: Path
    cache_dir: Path
    """Of the disk tier, where the plan gives it bytes."""
    threads: int
    device: str
    metrics: tuple[str, int] | None
    pod_uid: str
    placement: str = ""
    """Which models it is told of; empty: of all."""
    metrics_tls: tuple[Path, Path] | None = None
    """PEM certificate and key; None: the metrics' endpoint is in the clear."""
    metrics_address_file: Path | None = None
    """Written with the address of the Prometheus endpoint once it is bound, for whoever asked for port 0."""
    link_keys: LinkKeys | None = None
    """None: links in the clear, on this machine alone."""
    drain_s: float = 30.0
    """How long requests under way and the hand-over to disk may take after SIGTERM."""
    otlp_endpoint: str = ""
    """Where traces are sent; empty: where the environment says, or nowhere."""
    kv_events: ExportSettings | None = None
    """None: residency events go to gateways alone."""


def parse(arguments: Sequence[str] | None = None) -> Settings:
    """Read ``arguments`` (default: the process's); exits with one line on stderr if one is off."""
    parser = argparse.ArgumentParser(
        prog="python -m kvgrove_daemon", description="Owns the KV pools of one node and answers prompts from them."
    )
    parser.add_argument("--member", required=True, type=_member, help="this node's name in the fleet (a DNS label)")
    parser.add_argument(
        "--control", required=True, type=_endpoint, help="where the operator listens, e.g. tcp://10.0.0.1:7400"
    )
    parser.add_argument(
        "--listen", required=True, type=_endpoint, help="where gateways reach this node; port 0 or * for any"
    )
    parser.add_argument("--state-dir", required=True, type=Path, help="what this node must remember across restarts")
    parser.add_argument(
        "--cache-dir", type=Path, default=None, help="where the disk tier lies (default: disk in the state directory)"
    )
    parser.add_argument(
        "--threads", type=_positive, default=0, help="CPU threads of the engine (default: torch's own choice)"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--metrics", type=_host_port, default=None, help="HOST:PORT of the Prometheus endpoint (default: none)"
    )
    parser.add_argument(
        "--metrics-tls-cert", type=Path, metavar="FILE", help="PEM certificate with its chain: --metrics over HTTPS"
    )
    parser.add_argument("--metrics-tls-key", type=Path, metavar="FILE", help="PEM key of --metrics-tls-cert")
    parser.add_argument(
        "--metrics-address-file", type=Path, metavar="FILE", help="write the bound http:// address of --metrics here"
    )
    add_options(parser)
    add_option(parser)
    parser.add_argument(
        "--drain",
        type=_seconds,
        default=30.0,
        metavar="SECONDS",
        help="after SIGTERM, for requests under way and for what is brought to disk (default: %(default)g)",
    )
    parser.add_argument("--pod-uid", default="", help="UID of the Pod, where there is one")
    parser.add_argument(
        "--placement", default="", metavar="NAME", help="hold the models of this placement alone (default: all)"
    )
    parser.add_argument(
        "--kv-events",
        metavar="ENDPOINT",
        help="publish KV events of namespaces that opted in here, for others (default: off); ipc or loopback",
    )
    parser.add_argument("--kv-events-replay", metavar="ENDPOINT", help="where readers of them ask for what they missed")
    parser.add_argument("--kv-events-key", type=Path, metavar="FILE", help="this node's CURVE certificate, with secret")
    parser.add_argument("--kv-events-clients", type=Path, metavar="DIR", help="CURVE certificates of those let in")
    found = parser.parse_args(arguments)
    if (found.metrics_tls_cert is None) != (found.metrics_tls_key is None):
        parser.error("--metrics-tls-cert and --metrics-tls-key: HTTPS needs both; give the other one too")
    try:
        kv_events = export_settings(
            found.kv_events, found.kv_events_replay, found.kv_events_key, found.kv_events_clients
        )
        addresses = [("--control", found.control), ("--listen", found.listen)]
        keys = link_keys(found.link_keys, found.plain_links, DAEMON, addresses)
    except (ExportRefused, LinksOpen) as refused:
        parser.error(refused.message)
    return Settings(
        member=found.member,
        control=found.control,
        listen=re.sub(r":\*$", ":0", found.listen),
        state_dir=found.state_dir,
        cache_dir=found.cache_dir if found.cache_dir is not None else found.state_dir / "disk",
        threads=found.threads,
        device=found.device,
        metrics=found.metrics,
        metrics_tls=(found.metrics_tls_cert, found.metrics_tls_key) if found.metrics_tls_cert is not None else None,
        metrics_address_file=found.metrics_address_file,
        pod_uid=found.pod_uid,
        placement=found.placement,
        link_keys=keys,
        drain_s=found.drain,
        otlp_endpoint=found.otlp_endpoint,
        kv_events=kv_events,
    )


def _member(text: str) -> str:
    if re.fullmatch(r"[a-z0-9]([-a-z0-9.]{0,180}[a-z0-9])?", text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no DNS name: use lower-case letters, digits, '-' and '.'")
    return text


def _endpoint(text: str) -> str:
    if re.fullmatch(r"tcp://[^/\s]+:(\d+|\*)|ipc://.+", text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no endpoint: write tcp://HOST:PORT or ipc://PATH")
    return text


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of threads: give 1 or more")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 3_600:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: give seconds, 0 to 3600")
    return value


def _host_port(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: give IP:PORT, e.g. 127.0.0.1:9400") from None
    if not port.isdigit() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r}: the port must be 0 to 65535")
    return host.strip("[]"), int(port)
