"""1,000 random requests through a real fleet: what one scrape says is what the answers said (I10, MET-02 to MET-05)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_rig import Stage, stage, wait_ready, wait_until
from gateway_rig import metrics as scrape
from prometheus_client.parser import text_string_to_metric_families

from kvgrove_cli.metrics_reference import SERIES_OF_A_NAMESPACE, SERIES_OF_A_PROCESS
from kvgrove_cli.savings.report import savings_of
from kvgrove_cli.savings.scrape import add_up
from kvgrove_gateway.costs import Prices, Tokens, costs
from kvgrove_protocol.control import ModelPlan, NamespacePlan, PrefixPlan, PricingPlan
from kvgrove_protocol.fence import Fence
from kvgrove_protocol.identity import Purge
from kvgrove_protocol.reasons import MissReason

pytestmark = pytest.mark.e2e

REQUESTS = 1000
AT_ONCE = 8
BLOCK = 16
NODES = ("node-0", "node-1")
PRICING = PricingPlan(
    currency="EUR",
    input_per_million_tokens=0.6,
    cached_input_per_million_tokens=0.06,
    output_per_million_tokens=2.4,
    storage_per_gibibyte_hour=0.01,
)
RULES = "The house keeps its own cache and never reads what others asked. " * 3


@dataclass
class Asked:
    """A fleet that has answered, with what it answered and what was scraped."""

    stage: Stage
    bases: list[str]
    usages: list[dict[str, Any]]

    def gateways(self) -> list[str]:
        return [scrape(base) for base in self.bases]

    def nodes(self) -> list[str]:
        return [self.stage.node_metrics(name) for name in NODES]


def total(texts: list[str], name: str, **labels: str) -> dict[tuple[str, ...], float]:
    """Sums over processes of a metric's samples that have ``labels``, by their other labels but the namespace."""
    sums: Counter[tuple[str, ...]] = Counter()
    for text in texts:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == name and all(sample.labels.get(key) == value for key, value in labels.items()):
                    sums[tuple(value for key, value in sample.labels.items() if key != "namespace")] += sample.value
    return dict(sums)


def request(rng: random.Random) -> dict[str, Any]:
    """Beginnings that are shared or not, lengths below and above a block, histories and declared prefixes."""
    words = ("garden", "node", "cache", "tenant", "quota", "manual", "answer")
    topic = " ".join(rng.choice(words) for _ in range(rng.choice((1, 4, 12)))) if rng.random() < 0.5 else "the same"
    messages = [{"role": "user", "content": topic}]
    if rng.random() < 0.3:
        messages += [{"role": "assistant", "content": "Indeed."}, {"role": "user", "content": rng.choice(words)}]
    body = {
        "model": "team/bot",
        "max_tokens": rng.choice((1, 2)),
        "temperature": 0,
        "messages": messages,
        "stream": False,
    }
    return body | {"kvgrove": {"prefix": "rules"}} if rng.random() < 0.4 else body


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory, tiny_model: Callable[[str], Path]) -> Iterator[Asked]:
    with stage(tmp_path_factory.mktemp("sums")) as rig:
        for name in NODES:
            rig.daemon(name)
        bases = [rig.gateway(name) for name in ("gateway-0", "gateway-1")]
        rig.wait_daemons(len(NODES))
        planner = rig.planner
        model = ModelPlan(
            name="tiny", path=str(tiny_model("llama")), block_size=BLOCK, pool_bytes={"host": 8 << 20}, max_batch=8
        )
        namespace = NamespacePlan(
            uid="uid",
            name="team/bot",
            model="tiny",
            tenants=["acme", "other"],
            purge=Purge(1, b"n" * 16),
            fence=Fence(1, 1, 1),
            lease_seconds=120.0,
            prefixes=[PrefixPlan(name="rules", version="1", body=planner.body(RULES))],
            warm=["rules"],
            pricing=PRICING,
        )
        planner.issue([model], [namespace], wait=False)
        planner.wait_named()
        for base in bases:
            wait_ready(base)
        planner.wait_leased(planner.issue(list(planner.models), [namespace]))
        wait_until(
            lambda: all(planner.reports[name].namespaces[0].warm_ready > 0 for name in NODES), "the prefix is warm"
        )
        made = Asked(rig, bases, [])
        before = total(made.gateways(), "kvgrove_prompt_tokens_total")
        assert not any(before.values()), "WRM-01: warm-up is no request"
        bodies = [request(random.Random(seed)) for seed in range(REQUESTS)]
        with httpx.Client(timeout=120, limits=httpx.Limits(max_connections=AT_ONCE)) as client:

            def ask(number: int) -> dict[str, Any]:
                reply = client.post(
                    f"{bases[number % 2]}/v1/chat/completions",
                    json=bodies[number],
                    headers={"Authorization": f"Bearer {('ann', 'bob')[number % 3 == 0]}"},
                )
                assert reply.status_code == 200, reply.text
                answer: dict[str, Any] = reply.json()
                return answer

            with ThreadPoolExecutor(AT_ONCE) as threads:
                made.usages = list(threads.map(ask, range(REQUESTS)))
        yield made


def prompt_tokens(asked: Asked) -> int:
    return sum(each["usage"]["prompt_tokens"] for each in asked.usages)


def reused_tokens(asked: Asked) -> int:
    return sum(each["usage"]["prompt_tokens_details"]["cached_tokens"] for each in asked.usages)


def missed_tokens(asked: Asked) -> Counter[str]:
    missed: Counter[str] = Counter()
    for each in asked.usages:
        missed.update(each["kvgrove"]["missed"])
    return missed


def test_i10_explained_each_answer_adds_up(asked: Asked) -> None:
    assert len(asked.usages) == REQUESTS
    for each in asked.usages:
        cached = each["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached + sum(each["kvgrove"]["missed"].values()) == each["usage"]["prompt_tokens"]
    assert 0 < reused_tokens(asked) < prompt_tokens(asked), "MET-02: neither none nor all"
    assert {"new", "partial_block"} <= missed_tokens(asked).keys()


def test_met_03_one_scrape_of_the_gateways_says_what_the_answers_said(asked: Asked) -> None:
    scraped = asked.gateways()
    assert sum(total(scraped, "kvgrove_prompt_tokens_total").values()) == prompt_tokens(asked)
    by_tier = total(scraped, "kvgrove_reused_tokens_total")
    assert sum(by_tier.values()) == reused_tokens(asked)
    tiers: Counter[str] = Counter()
    for each in asked.usages:
        tiers[each["kvgrove"]["tier"]] += each["kvgrove"]["reused_tokens"]
    assert {tier: count for (tier,), count in by_tier.items() if count} == {k: v for k, v in tiers.items() if v}
    by_reason = total(scraped, "kvgrove_missed_tokens_total")
    assert {reason for (reason,) in by_reason} == {each.value for each in MissReason}, "also what is 0 has a series"
    assert {reason: count for (reason,), count in by_reason.items() if count} == dict(missed_tokens(asked))
    assert sum(total(scraped, "kvgrove_completion_tokens_total").values()) == sum(
        each["usage"]["completion_tokens"] for each in asked.usages
    )
    assert total(scraped, "kvgrove_gateway_requests_total", namespace="team/bot") == {("ok",): REQUESTS}
    (count,) = total(scraped, "kvgrove_reused_prefix_tokens_count").values()
    (length,) = total(scraped, "kvgrove_reused_prefix_tokens_sum").values()
    assert (count, length) == (REQUESTS, reused_tokens(asked))


def test_met_03_the_nodes_count_the_same(asked: Asked) -> None:
    scraped = asked.nodes()
    assert sum(total(scraped, "kvgrove_node_prompt_tokens_total").values()) == prompt_tokens(asked)
    assert sum(total(scraped, "kvgrove_node_reused_tokens_total").values()) == reused_tokens(asked)
    by_reason = total(scraped, "kvgrove_node_missed_tokens_total")
    assert {reason for (reason,) in by_reason} == {each.value for each in MissReason}, "also what is 0 has a series"
    assert {reason: count for (reason,), count in by_reason.items() if count} == dict(missed_tokens(asked))
    for histogram in ("queue", "prefill", "time_to_first_token"):
        assert sum(total(scraped, f"kvgrove_node_{histogram}_seconds_count").values()) == REQUESTS
    two = sum(each["usage"]["completion_tokens"] > 1 for each in asked.usages)
    assert sum(total(scraped, "kvgrove_node_time_per_output_token_seconds_count").values()) == two


def test_wrm_01_warm_up_is_counted_apart(asked: Asked) -> None:
    assert sum(total(asked.nodes(), "kvgrove_node_warmup_tokens_total").values()) > 0


def test_met_04_counters_stand_still_while_nothing_is_asked(asked: Asked) -> None:
    def counted() -> dict[str, dict[tuple[str, ...], float]]:
        names = ("prompt_tokens", "reused_tokens", "missed_tokens", "requests", "warmup_tokens")
        return {name: total(asked.nodes(), f"kvgrove_node_{name}_total") for name in names} | {
            name: total(asked.gateways(), f"kvgrove_{name}_total") for name in ("saved_tokens", "saved_cost")
        }

    first = counted()
    for _ in range(5):
        assert counted() == first


def test_api_04_savings_equal_those_of_the_answers(asked: Asked) -> None:
    scrapes = [(f"{at}", text) for at, text in enumerate([*asked.gateways(), *asked.nodes()])]
    (found,) = savings_of(add_up(scrapes))
    completion = sum(each["usage"]["completion_tokens"] for each in asked.usages)
    tokens = Tokens(prompt_tokens(asked), reused_tokens(asked), completion)
    assert (found.prompt_tokens, found.reused_tokens, found.completion_tokens) == (
        tokens.prompt,
        tokens.reused,
        tokens.completion,
    )
    assert found.missed_tokens == dict(missed_tokens(asked))
    raw = costs(tokens, Prices.of(PRICING))
    assert found.money is not None
    assert float(found.money.no_cache) == pytest.approx(float(raw.no_cache))
    assert float(found.money.cached) == pytest.approx(float(raw.cached))
    assert found.money.storage is not None
    assert found.money.storage > 0
    assert found.money.net == found.money.no_cache - found.money.cached - found.money.storage
    (saved,) = total(asked.gateways(), "kvgrove_saved_cost_total").values()
    assert saved == pytest.approx(float(raw.saved))
    assert found.saved_gpu_seconds > 0


def test_series_stay_within_the_documented_bound(asked: Asked) -> None:
    bound = SERIES_OF_A_PROCESS + SERIES_OF_A_NAMESPACE * (len(NODES) + 2)  # its namespaces and nodes
    for text in (*asked.gateways(), *asked.nodes()):
        assert sum(len(family.samples) for family in text_string_to_metric_families(text)) <= bound


def test_met_05_a_gateway_that_starts_anew_begins_at_nothing_and_the_others_go_on(asked: Asked) -> None:
    before = total([asked.gateways()[0]], "kvgrove_prompt_tokens_total")
    asked.stage.kill("gateway-1")
    base = asked.stage.gateway("gateway-1")
    wait_ready(base)
    assert not total([scrape(base)], "kvgrove_prompt_tokens_total")
    assert total([scrape(asked.bases[0])], "kvgrove_prompt_tokens_total") == before
