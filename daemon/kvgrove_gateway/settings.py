"""Command line -> Settings. Nothing here opens a file or a socket."""

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kvgrove_gateway.reasons import Telling
from kvgrove_gateway.tls import TlsFiles
from kvgrove_link.link_keys import LinkKeys
from kvgrove_link.security import add_options, link_keys
from kvgrove_link.tracing import add_option
from kvgrove_protocol.control import GATEWAY
from kvgrove_protocol.errors import Terminal

ABOVE_ZERO = (
    "max_body_bytes", "max_requests", "node_silence", "max_connections", "head_timeout", "idle_timeout",
    "reader_timeout", "kv_event_block_size",
)  # fmt: skip


class BadSettings(Terminal):
    """An option whose value cannot be used."""

    code = "bad_settings"


@dataclass(frozen=True)
class Limits:
    """Every bound of the gateway in one place (I11). Reaching one is counted or answered, never silent."""

    body_bytes: int = 8 << 20
    """Largest HTTP request body: 413 beyond."""
    requests: int = 512
    """Requests under way at once: 429 beyond."""
    assemblies: int = 128
    """Prompts waiting for a tokeniser thread: 429 beyond."""
    assembly_threads: int = 2
    """Also the number of processes that render templates."""
    template_s: float = 5.0
    """A template that takes longer is ended with its process."""
    assembly_cache_bytes: int = 128 << 20
    """Tokens of texts that were tokenised before."""
    stream_messages: int = 4096
    """Unread answer messages of one request: beyond, the caller is too slow and the request is cancelled."""
    attempts: int = 4
    """Nodes tried, and resolutions made, for one request."""
    plan_wait_s: float = 2.0
    """How long a request waits for a newer plan after a node refused its fence."""
    node_silence_s: float = 5.0
    """A node heard this long ago is down (it sends a heartbeat every second)."""
    node_send_queue: int = 1024
    bodies_bytes: int = 256 << 20
    body_fetch_s: float = 5.0
    bundle_bytes: int = 256 << 20
    bundle_fetch_s: float = 30.0
    tokenizers: int = 16
    index_blocks: int = 2_000_000
    engines: int = 64
    """Engines that are not ours, followed by their KV events: refused beyond."""
    engine_blocks: int = 262_144
    """Of all these engines together."""
    known_segments: int = 32_768
    sessions: int = 65_536
    conversations: int = 65_536
    """Answered requests of which it is remembered by what generation, while there are several."""
    route_deadline_s: float = 0.020
    drain_s: int = 30
    """How long requests under way may go on after SIGTERM."""
    drain_notice_s: float = 0.0
    """How long at least new connections are still taken, to be told that the gateway is not ready, after SIGTERM."""
    connections: int = 4096
    """Open at once: one more is closed at once."""
    head_s: float = 10.0
    """From a connection's first moment, or the first byte of a next request on it, to a whole request head."""
    idle_s: int = 75
    """Between two requests of a connection; above the 60 s of common load balancers."""
    reader_s: float = 60.0
    """How long an answer may wait for its reader to take more of it."""


@dataclass(frozen=True)
class EventSource:
    """Where an engine that is not ours publishes its KV events."""

    engine: str
    """Its URL: the name it is shown by."""
    events: str
    """ZeroMQ address of its PUB socket."""
    replay: str | None = None
    """ZeroMQ address of its ROUTER socket; None: it is followed from the first batch on."""


@dataclass(frozen=True)
class Settings:
    member: str
    """This gateway's name among the members."""
    control: str
    """ZeroMQ address of the planner."""
    host: str
    port: int
    """0: any free one."""
    keys: Path
    link_keys: LinkKeys | None = None
    """None: links in the clear, on this machine alone."""
    oidc: Path | None = None
    """Issuers whose tokens are taken."""
    rate_limits: Path | None = None
    """What tenants may use."""
    audit_log: Path | None = None
    otlp_endpoint: str = ""
    """Where traces are sent; empty: where the environment says, or nowhere."""
    tls: TlsFiles | None = None
    """None: HTTP in the clear."""
    address_file: Path | None = None
    """Written with the bound address once it is known, for whoever asked for port 0."""
    log_level: str = "INFO"
    reasons: Telling = Telling.ALWAYS
    """Whom to tell why tokens were computed."""
    explain_routes: bool = False
    """Tell keys that are marked ``explain`` how their requests were routed."""
    kv_event_sources: Sequence[EventSource] = ()
    kv_event_block_size: int = 16
    cacheable_minimum: Mapping[str, int] = field(default_factory=dict)
    """ModelVersion -> tokens below which a prefix that a caller marks with ``cache_control`` does not count as one;
    under ``""`` that of all others."""
    limits: Limits = field(default_factory=Limits)


CACHEABLE_MINIMUM = 1024
"""Anthropic's own for most models."""


def parse_minimum(values: Sequence[str]) -> dict[str, int]:
    """``[MODEL=]TOKENS`` each; raises BadSettings."""
    found = {"": CACHEABLE_MINIMUM}
    for text in values:
        model, _, tokens = text.rpartition("=")
        if not tokens.isdecimal() or (not model and "=" in text):
            raise BadSettings(
                f"--cacheable-minimum {text}: expected [MODEL=]TOKENS, for example tiny=256", field="cacheable_minimum"
            )
        found[model] = int(tokens)
    return found


def event_sources(events: Sequence[str], replays: Sequence[str], most: int) -> list[EventSource]:
    """Of ``URL=ENDPOINT`` each; raises BadSettings."""
    live = _by_url("kv-event-source", events)
    replay = _by_url("kv-event-replay-source", replays)
    for url in replay:
        if url not in live:
            raise BadSettings(
                f"--kv-event-replay-source {url}: name its live source too: --kv-event-source {url}=ENDPOINT",
                field="kv_event_replay_source",
            )
    if len(live) > most:
        raise BadSettings(f"--kv-event-source: {len(live)} engines; {most} are the most", field="kv_event_source")
    return [EventSource(url, endpoint, replay.get(url)) for url, endpoint in live.items()]


def _by_url(option: str, given: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given:
        matched = re.fullmatch(r"(https?://[^\s=]+)=(tcp://\S+:\d{1,5}|ipc://\S+)", text)
        if matched is None:
            raise BadSettings(
                f"--{option} {text}: expected URL=ENDPOINT, for example http://engine:8000=tcp://engine:5557",
                field=option.replace("-", "_"),
            )
        url, endpoint = matched.groups()
        if url in found:
            raise BadSettings(f"--{option} {url}: given twice; once for each engine", field=option.replace("-", "_"))
        found[url] = endpoint
    return found


def parse_listen(text: str) -> tuple[str, int]:
    """``HOST:PORT`` or ``[IPV6]:PORT``; raises BadSettings."""
    host, separator, port = text.rpartition(":")
    if not separator or not host or not port.isdecimal() or int(port) > 65_535:
        raise BadSettings(f"--listen {text}: expected HOST:PORT, for example 127.0.0.1:8080", field="listen")
    return host.removeprefix("[").removesuffix("]"), int(port)


def parse(arguments: Sequence[str] | None = None) -> Settings:
    """Settings from the command line; raises BadSettings, or SystemExit where argparse answers itself."""
    parser = argparse.ArgumentParser(prog="kvgrove-gateway", description="OpenAI-compatible front of a kvgrove fleet.")
    parser.add_argument("--member", required=True, metavar="NAME", help="this gateway's name among the members")
    parser.add_argument("--control", required=True, metavar="ADDRESS", help="planner, for example tcp://127.0.0.1:7400")
    parser.add_argument(
        "--listen", default="127.0.0.1:8080", metavar="HOST:PORT", help="HTTP address; port 0: any free"
    )
    add_options(parser)
    add_option(parser)
    parser.add_argument("--keys", required=True, type=Path, metavar="FILE", help="API keys (YAML, hashed)")
    parser.add_argument("--oidc", type=Path, metavar="FILE", help="OIDC issuers whose tokens are taken (YAML)")
    parser.add_argument("--rate-limits", type=Path, metavar="FILE", help="allowances of tenants (YAML)")
    parser.add_argument(
        "--audit-log",
        type=Path,
        metavar="PATH",
        help="append who used what, a JSON object a line; reopened on SIGHUP; -: standard output",
    )
    parser.add_argument("--tls-cert", type=Path, metavar="FILE", help="PEM certificate with its chain: serve HTTPS")
    parser.add_argument("--tls-key", type=Path, metavar="FILE", help="PEM key of --tls-cert")
    parser.add_argument("--address-file", type=Path, metavar="FILE", help="write the bound http:// address here")
    parser.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])
    parser.add_argument(
        "--reasons",
        choices=[each.value for each in Telling],
        default=Telling.ALWAYS.value,
        help="tell callers why tokens were computed (kvgrove.missed, x-kvgrove-cache); default: always",
    )
    parser.add_argument(
        "--explain-routes",
        action="store_true",
        help="tell keys marked `explain` how their requests were routed (x-kvgrove-route)",
    )
    parser.add_argument(
        "--kv-event-source",
        action="append",
        default=[],
        metavar="URL=ENDPOINT",
        help="follow the KV events of an engine that is not ours (vLLM, SGLang); may be repeated",
    )
    parser.add_argument(
        "--kv-event-replay-source",
        action="append",
        default=[],
        metavar="URL=ENDPOINT",
        help="where that engine answers for batches that were missed",
    )
    parser.add_argument("--kv-event-block-size", type=int, default=16, metavar="TOKENS", help="of these engines")
    parser.add_argument(
        "--cacheable-minimum",
        action="append",
        default=[],
        metavar="[MODEL=]TOKENS",
        help=f"shortest prefix that `cache_control` marks, for a ModelVersion or for all (default {CACHEABLE_MINIMUM})",
    )
    defaults = Limits()
    parser.add_argument("--max-body-bytes", type=int, default=defaults.body_bytes, metavar="N")
    parser.add_argument("--max-requests", type=int, default=defaults.requests, metavar="N", help="under way at once")
    parser.add_argument("--node-silence", type=float, default=defaults.node_silence_s, metavar="SECONDS")
    parser.add_argument("--drain", type=int, default=defaults.drain_s, metavar="SECONDS", help="after SIGTERM")
    parser.add_argument(
        "--drain-notice",
        type=float,
        default=defaults.drain_notice_s,
        metavar="SECONDS",
        help="after SIGTERM, say 'not ready' this long before the port is closed",
    )
    parser.add_argument("--max-connections", type=int, default=defaults.connections, metavar="N", help="open at once")
    parser.add_argument(
        "--head-timeout", type=float, default=defaults.head_s, metavar="SECONDS", help="a request's head"
    )
    parser.add_argument("--idle-timeout", type=int, default=defaults.idle_s, metavar="SECONDS", help="between requests")
    parser.add_argument(
        "--reader-timeout", type=float, default=defaults.reader_s, metavar="SECONDS", help="an answer nobody reads"
    )
    options = parser.parse_args(arguments)
    host, port = parse_listen(options.listen)
    for name in ABOVE_ZERO:
        if getattr(options, name) <= 0:
            raise BadSettings(f"--{name.replace('_', '-')}: must be above 0", field=name)
    for name in ("drain", "drain_notice"):
        if getattr(options, name) < 0:
            raise BadSettings(f"--{name.replace('_', '-')}: must be 0 or above", field=name)
    if (options.tls_cert is None) != (options.tls_key is None):
        raise BadSettings("--tls-cert and --tls-key: HTTPS needs both; give the other one too", field="tls_cert")
    return Settings(
        member=options.member,
        control=options.control,
        host=host,
        port=port,
        keys=options.keys,
        link_keys=link_keys(options.link_keys, options.plain_links, GATEWAY, [("--control", options.control)]),
        oidc=options.oidc,
        rate_limits=options.rate_limits,
        audit_log=options.audit_log,
        otlp_endpoint=options.otlp_endpoint,
        tls=TlsFiles(options.tls_cert, options.tls_key) if options.tls_cert is not None else None,
        address_file=options.address_file,
        log_level=options.log_level,
        explain_routes=options.explain_routes,
        kv_event_sources=event_sources(options.kv_event_source, options.kv_event_replay_source, defaults.engines),
        kv_event_block_size=options.kv_event_block_size,
        cacheable_minimum=parse_minimum(options.cacheable_minimum),
        reasons=Telling(options.reasons),
        limits=Limits(
            body_bytes=options.max_body_bytes,
            requests=options.max_requests,
            node_silence_s=options.node_silence,
            drain_s=options.drain,
            drain_notice_s=options.drain_notice,
            connections=options.max_connections,
            head_s=options.head_timeout,
            idle_s=options.idle_timeout,
            reader_s=options.reader_timeout,
        ),
    )
