"""From what was counted to what it was worth, for people and scripts. Pure."""

from collections.abc import Mapping
from decimal import Decimal

import msgspec

from kvgrove_cli.savings.scrape import Counted
from kvgrove_cli.status import columns
from kvgrove_gateway.costs import Costs, Prices, Tokens, costs


class Money(msgspec.Struct, frozen=True, kw_only=True):
    """In ``currency``, by the namespace's ``spec.pricing``."""

    currency: str
    no_cache: Decimal
    cached: Decimal
    storage: Decimal | None
    """None: no node was scraped; ``net`` leaves it out then."""
    net: Decimal


class Savings(msgspec.Struct, frozen=True, kw_only=True):
    namespace: str
    prompt_tokens: int
    reused_tokens: int
    completion_tokens: int
    reusable_token_ratio: float | None
    """ReusableTokenRatio: reused over prompt tokens."""
    missed_tokens: dict[str, int]
    """By reason; with ``reused_tokens`` they add up to ``prompt_tokens``."""
    saved_gpu_seconds: float
    """Of prefill, by the rates that the answering nodes had measured."""
    money: Money | None
    """None: the namespace has no ``spec.pricing``."""


def savings_of(counted: Mapping[str, Counted]) -> list[Savings]:
    return [_of(namespace, each) for namespace, each in counted.items()]


def _of(namespace: str, counted: Counted) -> Savings:
    tokens = Tokens(
        prompt=counted.tokens["prompt"], reused=counted.tokens["reused"], completion=counted.tokens["completion"]
    )
    return Savings(
        namespace=namespace,
        prompt_tokens=tokens.prompt,
        reused_tokens=tokens.reused,
        completion_tokens=tokens.completion,
        reusable_token_ratio=tokens.reusable_token_ratio,
        missed_tokens=dict(sorted(counted.missed.items())),
        saved_gpu_seconds=round(counted.saved_seconds, 6),
        money=_money(tokens, counted) if counted.prices else None,
    )


def _money(tokens: Tokens, counted: Counted) -> Money:
    zero = Decimal(0)
    prices = Prices(
        currency=counted.currency,
        input=counted.prices.get("input", zero),
        cached_input=counted.prices.get("cached_input", zero),
        output=counted.prices.get("output", zero),
        byte_second=counted.prices.get("storage", zero),
    )
    known = counted.byte_seconds is not None or not prices.byte_second
    found: Costs = costs(tokens, prices, byte_seconds=counted.byte_seconds or zero)
    return Money(
        currency=prices.currency,
        no_cache=found.no_cache,
        cached=found.cached,
        storage=found.storage if known else None,
        net=found.net,
    )


def as_table(found: list[Savings]) -> str:
    rows = [
        (
            each.namespace,
            f"{each.prompt_tokens}",
            f"{each.reused_tokens}",
            "" if each.reusable_token_ratio is None else f"{each.reusable_token_ratio:.1%}",
            f"{each.saved_gpu_seconds:.1f}",
            *_cells(each.money),
        )
        for each in found
    ]
    head = ("NAMESPACE", "PROMPT", "REUSED", "RATIO", "GPU-SECONDS", "NO-CACHE", "CACHED", "STORAGE", "NET")
    lines = [columns(head, rows)]
    for each in found:
        reasons = ", ".join(f"{reason} {count}" for reason, count in each.missed_tokens.items())
        lines.append(f"{each.namespace}: computed {reasons or 'nothing'}")
    if any(each.money is not None and each.money.storage is None for each in found):
        lines.append("storage is not known, and not in NET: add the metrics of the nodes")
    if any(each.money is None for each in found):
        lines.append("no money where the namespace has no spec.pricing")
    return "\n".join(lines)


def _cells(money: Money | None) -> tuple[str, ...]:
    if money is None:
        return ("", "", "", "")
    amounts = (money.no_cache, money.cached, money.storage, money.net)
    return tuple("?" if amount is None else f"{amount:.4f} {money.currency}" for amount in amounts)
