"""`kvgrove savings`: sums over scrapes, and what they were worth (API-04, MET-05)."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest
from click.testing import CliRunner
from prometheus_client import generate_latest

from kvgrove_cli import console
from kvgrove_cli.__main__ import kvgrove
from kvgrove_cli.errors import FleetProblem, UsageProblem
from kvgrove_cli.savings.report import as_table, savings_of
from kvgrove_cli.savings.scrape import add_up
from kvgrove_daemon.metrics import NodeMetrics
from kvgrove_gateway.costs import Prices, Tokens, costs
from kvgrove_gateway.metrics import Metrics
from kvgrove_protocol.control import NamespacePlan, PricingPlan
from kvgrove_protocol.data import Usage
from kvgrove_protocol.fence import Fence
from kvgrove_protocol.identity import Purge
from kvgrove_protocol.reasons import MissReason

PRICING = PricingPlan(
    currency="EUR",
    input_per_million_tokens=0.6,
    cached_input_per_million_tokens=0.06,
    output_per_million_tokens=2.4,
    storage_per_gibibyte_hour=0.01,
)
USAGES = [
    Usage(prompt=1000, reused=640, completion=12, missed={MissReason.NEW: 340, MissReason.PARTIAL_BLOCK: 20}),
    Usage(prompt=64, reused=0, completion=3, missed={MissReason.EVICTED: 32, MissReason.PARTIAL_BLOCK: 32}),
]


def namespace(pricing: PricingPlan | None = PRICING, name: str = "team/bot") -> NamespacePlan:
    return NamespacePlan(uid=name, name=name, model="tiny", purge=Purge(1, b"n"), fence=Fence(1, 1, 1), pricing=pricing)


def gateway(*usages: Usage, pricing: PricingPlan | None = PRICING, rate: float = 400.0) -> str:
    metrics = Metrics()
    metrics.savings.follow([namespace(pricing)])
    for usage in usages:
        metrics.answered("team/bot", usage, "host", rate)
    return metrics.render().decode()


def node(bytes_held: int, seconds: float) -> str:
    metrics = NodeMetrics()
    for now in (0.0, seconds):
        metrics.held.show({("team/bot", "host"): bytes_held, ("gone/one", "host"): 5}, {"team/bot"}, now)
    return generate_latest(metrics.registry).decode()


def test_api_04_the_figures_equal_those_of_raw_tokens() -> None:
    (found,) = savings_of(add_up([("a", gateway(USAGES[0])), ("b", gateway(USAGES[1])), ("n", node(1 << 30, 3600))]))
    assert (found.prompt_tokens, found.reused_tokens, found.completion_tokens) == (1064, 640, 15)
    assert found.reused_tokens + sum(found.missed_tokens.values()) == found.prompt_tokens
    assert found.reusable_token_ratio == 640 / 1064
    assert found.saved_gpu_seconds == 640 / 400
    raw = costs(Tokens(1064, 640, 15), Prices.of(PRICING), byte_seconds=Decimal((1 << 30) * 3600))
    assert found.money is not None
    assert found.money.currency == "EUR"
    for name in ("no_cache", "cached", "storage", "net"):
        assert abs(getattr(found.money, name) - getattr(raw, name)) < Decimal("1e-12"), name


def test_what_is_not_known_is_said_and_not_taken_for_nothing() -> None:
    (without_nodes,) = savings_of(add_up([("a", gateway(*USAGES))]))
    assert without_nodes.money is not None
    assert without_nodes.money.storage is None
    assert "storage is not known" in as_table([without_nodes])
    (unpriced,) = savings_of(add_up([("a", gateway(*USAGES, pricing=None))]))
    assert unpriced.money is None
    assert "no spec.pricing" in as_table([unpriced])
    (unrated,) = savings_of(add_up([("a", gateway(*USAGES, rate=0.0))]))
    assert (unrated.saved_gpu_seconds, unrated.reused_tokens) == (0, 640)


def test_prices_that_contradict_each_other_and_texts_that_are_no_scrape_are_refused() -> None:
    dearer = PricingPlan(currency="EUR", input_per_million_tokens=9.0)
    with pytest.raises(FleetProblem, match="different prices"):
        add_up([("a", gateway(*USAGES)), ("b", gateway(*USAGES, pricing=dearer))])
    with pytest.raises(UsageProblem, match="text format"):
        add_up([("a", "not { a scrape")])


def test_a_changed_price_leaves_no_series_behind() -> None:
    metrics = Metrics()
    metrics.savings.follow([namespace()])
    metrics.savings.follow([namespace(PricingPlan(currency="USD", input_per_million_tokens=1.0))])
    assert 'currency="EUR"' not in metrics.render().decode()
    metrics.savings.follow([namespace(None)])
    assert "kvgrove_token_price{" not in metrics.render().decode()


def test_met_04_held_bytes_grow_with_time_alone_and_go_with_their_namespace() -> None:
    metrics = NodeMetrics()

    def total() -> float | None:
        return metrics.registry.get_sample_value(
            "kvgrove_node_held_byte_seconds_total", {"namespace": "a", "tier": "host"}
        )

    metrics.held.show({("a", "host"): 100}, {"a"}, 10.0)
    for _ in range(3):
        metrics.held.show({("a", "host"): 100}, {"a"}, 12.0)
    assert total() == 200
    metrics.held.show({}, {"a"}, 13.0)
    metrics.held.show({}, {"a"}, 99.0)
    assert total() == 300, "what went is held no more"
    metrics.held.show({("a", "host"): 7}, {"a"}, 100.0)
    metrics.held.show({}, set(), 101.0)
    assert total() is None


def test_the_command_reads_files_and_prints_both_forms(tmp_path: Path) -> None:
    file = tmp_path / "scrape.txt"
    file.write_text(gateway(*USAGES))
    found = CliRunner().invoke(kvgrove, ["savings", str(file), "-o", "json"])
    assert found.exit_code == 0, found.output
    (entry,) = json.loads(found.output)
    assert entry["namespace"] == "team/bot"
    assert entry["money"]["no_cache"] == pytest.approx(1064 * 0.6e-6 + 15 * 2.4e-6)
    table = CliRunner().invoke(kvgrove, ["savings", str(file)]).output
    assert "60.2%" in table
    assert "evicted 32" in table


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nowhere.txt"], console.EXIT_USAGE, "nowhere.txt"),
        (["http://127.0.0.1:1/metrics"], console.EXIT_FAILED, "is it running"),
    ],
)
def test_what_cannot_be_read_is_one_line(
    arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert console.run(lambda: kvgrove.main(["savings", *arguments], standalone_mode=False)) == code
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
