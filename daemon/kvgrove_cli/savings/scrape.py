"""Prometheus' text format, from files and addresses, as sums over processes. Pure but for `read`.

A counter is summed over the processes that were scraped, whatever label tells them apart there; a price must be the
same wherever it is said.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from kvgrove_cli.errors import FleetProblem, UsageProblem
from kvgrove_cli.web import get, is_url

_COUNTED = {
    "kvgrove_prompt_tokens_total": "prompt",
    "kvgrove_saved_tokens_total": "reused",
    "kvgrove_completion_tokens_total": "completion",
}


@dataclass
class Counted:
    """What was counted of one namespace."""

    tokens: Counter[str] = field(default_factory=Counter)
    """``prompt``, ``reused``, ``completion``."""
    missed: Counter[str] = field(default_factory=Counter)
    """By reason."""
    saved_seconds: float = 0.0
    byte_seconds: Decimal | None = None
    """None: no node was scraped, or none holds anything of it."""
    prices: dict[str, Decimal] = field(default_factory=dict)
    """Of one token by kind, ``storage`` of a byte second; empty without `spec.pricing`."""
    currency: str = ""


def read(source: str, key: str) -> str:
    """The text at ``source``, a file or an address; a gateway's base address means its ``/metrics``.

    ``key``: a monitor's or an operator's, for gateways.
    """
    if is_url(source):
        base = source.rstrip("/")
        body = get(base if base.endswith("/metrics") else base.removesuffix("/v1") + "/metrics", key=key)
    else:
        try:
            body = Path(source).read_bytes()
        except OSError as error:
            raise UsageProblem(f"{source}: {error.strerror}; give a file of a scrape, or an address") from None
    return body.decode(errors="replace")


def add_up(scrapes: Iterable[tuple[str, str]]) -> dict[str, Counted]:
    """Namespace -> what ``scrapes`` (name and text of each) count of it.

    Raises UsageProblem for text that is no scrape, FleetProblem where prices contradict each other.
    """
    found: defaultdict[str, Counted] = defaultdict(Counted)
    for source, text in scrapes:
        try:
            families = list(text_string_to_metric_families(text))
        except ValueError as error:
            raise UsageProblem(f"{source}: not in Prometheus' text format: {error}") from None
        for family in families:
            for sample in family.samples:
                if (namespace := sample.labels.get("namespace")) is not None:
                    _take(found[namespace], namespace, sample.name, sample.labels, sample.value)
    return {name: counted for name, counted in sorted(found.items()) if counted.tokens["prompt"]}


def _take(counted: Counted, namespace: str, name: str, labels: dict[str, str], value: float) -> None:
    if name in _COUNTED:
        counted.tokens[_COUNTED[name]] += int(value)
    elif name == "kvgrove_missed_tokens_total" and value:
        counted.missed[labels["reason"]] += int(value)
    elif name == "kvgrove_saved_prefill_seconds_total":
        counted.saved_seconds += value
    elif name == "kvgrove_node_held_byte_seconds_total":
        counted.byte_seconds = (counted.byte_seconds or Decimal(0)) + _decimal(value)
    elif name == "kvgrove_token_price":
        _price(counted, namespace, labels["currency"], labels["kind"], value)
    elif name == "kvgrove_storage_price_per_byte_second":
        _price(counted, namespace, labels["currency"], "storage", value)


def _price(counted: Counted, namespace: str, currency: str, kind: str, value: float) -> None:
    price = _decimal(value)
    if counted.prices.setdefault(kind, price) != price or counted.currency not in ("", currency):
        raise FleetProblem(
            f"{namespace}: gateways reckon by different prices: scrape them again once all have the plan"
        )
    counted.currency = currency


def _decimal(value: float) -> Decimal:
    return Decimal(repr(value))
