"""What reuse saved: tokens, prefill time and money, with the prices that the money was reckoned by.

Counted from the same usage as callers are told, once an answer is over, so that `kvgrove savings` gets the same figures
from one scrape as from the answers. Warm-up is no answer, and is not here (WRM-01).
"""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from kvgrove_gateway.costs import Prices, Tokens, costs
from kvgrove_protocol.control import NamespacePlan
from kvgrove_protocol.data import Usage

_LENGTHS = (0, *(32 << step for step in range(13)))
"""Tokens: none, one default block, doubling up to 131,072."""


class SavingMetrics:
    """Mutable, on the event loop."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._prices: dict[str, Prices] = {}
        self.reused_lengths = Histogram(
            "kvgrove_reused_prefix_tokens",
            "Length of the reused beginning of each answered prompt, in tokens; the mean is sum over count",
            ["namespace"],
            buckets=_LENGTHS,
            registry=registry,
        )
        self.tokens = Counter(
            "kvgrove_saved_tokens",
            "Prompt tokens that were not computed, because they were reused",
            ["namespace"],
            registry=registry,
        )
        self.prefill_seconds = Counter(
            "kvgrove_saved_prefill_seconds",
            "Seconds of prefill that reuse spared, by the rate that the answering node had measured; a node that has "
            "measured none yet adds nothing",
            ["namespace"],
            registry=registry,
        )
        self.cost = Counter(
            "kvgrove_saved_cost",
            "Money that reuse saved by spec.pricing, in units of the currency, storage not deducted",
            ["namespace", "currency"],
            registry=registry,
        )
        self.token_price = Gauge(
            "kvgrove_token_price",
            "Price of one token by spec.pricing, in units of the currency",
            ["namespace", "currency", "kind"],
            registry=registry,
        )
        self.storage_price = Gauge(
            "kvgrove_storage_price_per_byte_second",
            "Price of keeping a byte for a second by spec.pricing, in units of the currency",
            ["namespace", "currency"],
            registry=registry,
        )

    def follow(self, namespaces: Iterable[NamespacePlan]) -> None:
        """Reckon by these prices from now on; what was counted before stays as it was."""
        new = {each.name: Prices.of(each.pricing) for each in namespaces if each.pricing is not None}
        for name, prices in self._prices.items():
            if new.get(name) != prices:
                self._withdraw(name)
        for name, prices in new.items():
            for kind, price in (
                ("input", prices.input),
                ("cached_input", prices.cached_input),
                ("output", prices.output),
            ):
                self.token_price.labels(name, prices.currency, kind).set(float(price))
            self.storage_price.labels(name, prices.currency).set(float(prices.byte_second))
        self._prices = new

    def answered(self, namespace: str, usage: Usage, prefill_tokens_per_s: float) -> None:
        """``prefill_tokens_per_s``: of the node that answered; 0 where it has measured none."""
        if usage.prompt:  # one more answer to the same prompt has none of its own
            self.reused_lengths.labels(namespace).observe(usage.reused)
        self.tokens.labels(namespace).inc(usage.reused)
        if prefill_tokens_per_s > 0:
            self.prefill_seconds.labels(namespace).inc(usage.reused / prefill_tokens_per_s)
        if (prices := self._prices.get(namespace)) is not None:
            tokens = Tokens(prompt=usage.prompt, reused=usage.reused, completion=usage.completion)
            self.cost.labels(namespace, prices.currency).inc(float(costs(tokens, prices).saved))

    def forget(self, namespace: str) -> None:
        """Drop the series of a namespace that is gone."""
        for metric in (self.reused_lengths, self.tokens, self.prefill_seconds, self.cost):
            metric.remove_by_labels({"namespace": namespace})
        self._withdraw(namespace)

    def _withdraw(self, namespace: str) -> None:
        self.token_price.remove_by_labels({"namespace": namespace})
        self.storage_price.remove_by_labels({"namespace": namespace})
