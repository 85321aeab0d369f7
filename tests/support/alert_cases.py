"""Histories of a fleet in minutes, and which alerts they raise: for each alert one that does, and such that must not.

A history is the numbers that parts of the fleet show, in promtool's notation: ``0+60x30`` is a counter that begins at 0
and rises by 60 a minute for half an hour. Series have the labels that the parts and the PodMonitors give them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Labels = Mapping[str, str]
BOT = {"namespace": "shop/bot"}
NODE = {"node": "node-a"}


@dataclass(frozen=True)
class Case:
    alert: str
    story: str
    at: int
    """Minutes after the beginning."""
    series: Mapping[str, str]
    fires: tuple[Labels, ...] = ()


def _traffic(reused: str, **missed: str) -> dict[str, str]:
    """1,000 prompt tokens a second, of which these are reused or missed."""
    series = {
        'kvgrove_prompt_tokens_total{namespace="shop/bot"}': "0+60000x300",
        'kvgrove_reused_tokens_total{namespace="shop/bot",tier="host"}': reused,
        'kvgrove_operator_namespace_condition{namespace="shop/bot",type="Promoted"}': "1x300",
        'kvgrove_operator_namespace_condition{namespace="shop/bot",type="Warm"}': "1x300",
    }
    return series | {
        f'kvgrove_missed_tokens_total{{namespace="shop/bot",reason="{reason}"}}': values
        for reason, values in missed.items()
    }


GOOD = "0+54000x180 9720000+54000x120"
"""90 % for three hours, and on."""
BAD = "0+54000x180 9726000+6000x119"
"""90 % for three hours, then 10 %."""
LATE = "0x180 48000+48000x119"
"""Nothing for three hours, then 80 % of the prompt."""
FEW = "0+3000x300"
"""5 %."""
SHORT_DIP = "0+54000x180 9726000+6000x9 9834000+54000x110"
"""10 % for ten minutes, as after a restart."""
MUCH_NEW = "0+3000x180 588000+48000x119"


def _threshold(series: str, value: str) -> dict[str, str]:
    return {f'{series}{{namespace="shop/bot"}}': value}


HIT_RATIO = (
    Case(
        "KvgroveHitRatioCollapse",
        "a template changed",
        215,
        _traffic(BAD, new=FEW, partial_block=FEW, generation_changed=LATE),
        ({**BOT, "cause": "generation_changed"},),
    ),
    Case(
        "KvgroveHitRatioCollapse",
        "tenants flood the pools",
        215,
        _traffic(BAD, new=FEW, partial_block=FEW, evicted=LATE),
        ({**BOT, "cause": "evicted"},),
    ),
    Case(
        "KvgroveHitRatioCollapse",
        "a clock entered the system prompt",
        215,
        _traffic(BAD, new=MUCH_NEW, partial_block=FEW),
        ({**BOT, "cause": "new"},),
    ),
    Case(
        "KvgroveHitRatioCollapse",
        "a ratio that was never better is below the declared minimum",
        120,
        _traffic("0+36000x300", new="0+21000x300", partial_block=FEW)
        | _threshold("kvgrove:hit_ratio_minimum", "0.7x300"),
        ({**BOT, "cause": "new"},),
    ),
    Case("KvgroveHitRatioCollapse", "quiet: all is well", 215, _traffic(GOOD, new=FEW, partial_block=FEW)),
    Case(
        "KvgroveHitRatioCollapse",
        "quiet: a restart",
        240,
        _traffic(SHORT_DIP, new=FEW, evicted="0x180 48000+48000x9 480000x110"),
    ),
    Case(
        "KvgroveHitRatioCollapse",
        "quiet: a rollout is under way",
        215,
        _traffic(BAD, new=FEW, generation_changed=LATE)
        | {'kvgrove_operator_namespace_condition{namespace="shop/bot",type="Promoted"}': "1x180 0x120"},
    ),
    Case(
        "KvgroveHitRatioCollapse",
        "quiet: a warm-up is under way",
        215,
        _traffic(BAD, new=FEW, document_changed=LATE)
        | {'kvgrove_operator_namespace_condition{namespace="shop/bot",type="Warm"}': "1x180 0x120"},
    ),
    Case(
        "KvgroveHitRatioCollapse",
        "quiet: nearly idle",
        215,
        {
            'kvgrove_prompt_tokens_total{namespace="shop/bot"}': "0+60000x180 10800060+60x120",
            'kvgrove_reused_tokens_total{namespace="shop/bot",tier="host"}': "0+54000x180 9720000x120",
            'kvgrove_missed_tokens_total{namespace="shop/bot",reason="new"}': "0+6000x180 1080060+60x120",
        },
    ),
    Case(
        "KvgroveHitRatioCollapse",
        "quiet: alerts of the namespace are off",
        215,
        _traffic(BAD, new=FEW, evicted=LATE) | _threshold("kvgrove:alerts_off", "1x300"),
    ),
)

_POOL = {
    'kvgrove_node_blocks{node="node-a",state="ready"}': "9000x60",
    'kvgrove_node_blocks{node="node-a",state="free"}': "1000x60",
}


def _removed(cause: str, values: str) -> dict[str, str]:
    return _POOL | {f'kvgrove_node_removed_blocks_total{{node="node-a",cause="{cause}"}}': values}


EVICTIONS = (
    Case("KvgroveEvictionStorm", "a pool is replaced in five minutes", 30, _removed("pressure", "0+2000x60"), (NODE,)),
    Case(
        "KvgroveEvictionStorm",
        "faster than a namespace allows",
        30,
        _removed("quota", "0+300x60") | _threshold("kvgrove:evictions_per_second_maximum", "2x60"),
        (NODE,),
    ),
    Case("KvgroveEvictionStorm", "quiet: a full pool under steady load", 30, _removed("pressure", "0+300x60")),
    Case(
        "KvgroveEvictionStorm", "quiet: a rollout drops the old generation", 30, _removed("version", "0x10 0+3000x50")
    ),
    Case("KvgroveEvictionStorm", "quiet: a burst that is over", 30, _removed("pressure", "0x10 0+2000x5 10000x45")),
)


def _age(what: str, values: str, **thresholds: str) -> dict[str, str]:
    series = {f'kvgrove_operator_{what}_age_seconds{{namespace="shop/bot",pod="operator-0"}}': values}
    return series | {f'kvgrove:{name}{{namespace="shop/bot"}}': value for name, value in thresholds.items()}


AGES = (
    Case("KvgroveWarmupStuck", "for longer than half an hour", 40, _age("warmup", "0+60x90"), (BOT,)),
    Case(
        "KvgroveWarmupStuck",
        "for longer than the namespace allows",
        20,
        _age("warmup", "0+60x90", warmup_seconds_maximum="600x90"),
        (BOT,),
    ),
    Case("KvgroveWarmupStuck", "quiet: a warm-up of twenty minutes", 24, _age("warmup", "0+60x20 0x60")),
    Case(
        "KvgroveWarmupStuck",
        "quiet: a slow one that the namespace allows",
        60,
        _age("warmup", "0+60x90", warmup_seconds_maximum="7200x90"),
    ),
    Case("KvgroveWarmupStuck", "quiet: one that ends as it becomes late", 50, _age("warmup", "0+60x33 0x60")),
    Case("KvgroveWarmupStuck", "quiet: nothing to warm", 60, _age("warmup", "0x90")),
    Case(
        "KvgroveWarmupStuck",
        "quiet: alerts of the namespace are off",
        60,
        _age("warmup", "0+60x90", alerts_off="1x90"),
    ),
    Case(
        "KvgroveWarmupStuck",
        "two operators are seen at a change of leaders",
        40,
        _age("warmup", "0+60x90")
        | {'kvgrove_operator_warmup_age_seconds{namespace="shop/bot",pod="operator-1"}': "_x38 2280+60x50"},
        (BOT,),
    ),
    Case(
        "KvgroveInvalidationOverdue",
        "a member neither confirms nor loses its lease",
        9,
        _age("invalidation", "0+60x30"),
        (BOT,),
    ),
    Case(
        "KvgroveInvalidationOverdue",
        "quiet: a node that is gone, until its lease has run out",
        9,
        _age("invalidation", "0+60x4 0x30"),
    ),
    Case(
        "KvgroveInvalidationOverdue",
        "quiet: a long lease, as declared",
        20,
        _age("invalidation", "0+60x30", invalidation_seconds_maximum="3600x30"),
    ),
    Case("KvgroveInvalidationOverdue", "quiet: complete as it becomes late", 20, _age("invalidation", "0+60x6 0x30")),
    Case("KvgroveInvalidationOverdue", "quiet: idle", 20, _age("invalidation", "0x30")),
    Case("KvgroveEraseOverdue", "a node that holds the data stays away", 70, _age("erasure", "0+60x90"), (BOT,)),
    Case("KvgroveEraseOverdue", "quiet: a node restarts meanwhile", 70, _age("erasure", "0+60x50 0x40")),
    Case("KvgroveEraseOverdue", "quiet: complete as it becomes late", 80, _age("erasure", "0+60x63 0x30")),
    Case("KvgroveEraseOverdue", "quiet: idle", 70, _age("erasure", "0x90")),
)

GATEWAYS = (
    Case(
        "KvgroveIndexDrift",
        "drift that stays",
        30,
        {
            'kvgrove_index_drift{node="node-a",pod="gateway-0"}': "0x10 4x30",
            'kvgrove_index_drift{node="node-b"}': "0x40",
        },
        (NODE,),
    ),
    Case(
        "KvgroveIndexDrift",
        "quiet: healed by a snapshot, as after a restart of the node",
        30,
        {'kvgrove_index_drift{node="node-a"}': "0x10 4x5 0x30"},
    ),
    Case(
        "KvgroveEventGap",
        "a gateway that cannot keep up",
        40,
        {'kvgrove_router_resyncs_total{reason="gap",pod="gateway-0",instance="10.0.0.1:8080"}': "0+3x60"},
        ({"pod": "gateway-0", "instance": "10.0.0.1:8080"},),
    ),
    Case(
        "KvgroveEventGap",
        "quiet: one gap an hour",
        40,
        {'kvgrove_router_resyncs_total{reason="gap",pod="gateway-0"}': "0x20 1x40"},
    ),
    Case(
        "KvgroveEventGap",
        "quiet: a restart of all nodes",
        40,
        {'kvgrove_router_resyncs_total{reason="start",pod="gateway-0"}': "0x30 100x30"},
    ),
    Case(
        "KvgroveCrossTenantProbe",
        "somebody guesses names",
        30,
        {'kvgrove_gateway_requests_total{namespace="-",outcome="model_not_found"}': "0+120x60"},
        ({"namespace": "-"},),
    ),
    Case(
        "KvgroveCrossTenantProbe",
        "somebody tries documents of a namespace",
        30,
        {
            'kvgrove_gateway_requests_total{namespace="shop/bot",outcome="document_not_found"}': "0+30x60",
            'kvgrove_gateway_requests_total{namespace="shop/bot",outcome="prefix_not_found"}': "0+30x60",
        },
        (BOT,),
    ),
    Case(
        "KvgroveCrossTenantProbe",
        "somebody without its scopes tries prompts",
        30,
        {'kvgrove_missed_tokens_total{namespace="shop/bot",reason="scope_denied"}': "0+6000x60"},
        (BOT,),
    ),
    Case(
        "KvgroveCrossTenantProbe",
        "quiet: a typing error, and much of what is allowed",
        30,
        {
            'kvgrove_gateway_requests_total{namespace="-",outcome="model_not_found"}': "0x20 5x40",
            'kvgrove_gateway_requests_total{namespace="shop/bot",outcome="ok"}': "0+6000x60",
        },
    ),
)

NODES = (
    Case(
        "KvgroveFlightTimeouts",
        "a fifth of those who wait wait in vain",
        40,
        {
            'kvgrove_flight_joined_total{node="node-a"}': "0+100x60",
            'kvgrove_flight_time_outs_total{node="node-a"}': "0+20x60",
        },
        (NODE,),
    ),
    Case(
        "KvgroveFlightTimeouts",
        "quiet: a cold start, in which few do",
        40,
        {
            'kvgrove_flight_joined_total{node="node-a"}': "0+1000x10 10000x50",
            'kvgrove_flight_time_outs_total{node="node-a"}': "0+20x10 200x50",
        },
    ),
    Case(
        "KvgroveFlightTimeouts",
        "quiet: nobody waits",
        40,
        {'kvgrove_flight_joined_total{node="node-a"}': "0x60", 'kvgrove_flight_time_outs_total{node="node-a"}': "0x60"},
    ),
    Case(
        "KvgrovePoolPressure",
        "requests wait for room",
        30,
        {'kvgrove_node_waiting_for_room{node="node-a"}': "0x5 3x60"},
        (NODE,),
    ),
    Case(
        "KvgrovePoolPressure",
        "requests evict on their own way",
        30,
        {'kvgrove_evictions_on_request_path_total{node="node-a",tier="host"}': "0+600x60"},
        (NODE,),
    ),
    Case(
        "KvgrovePoolPressure",
        "computed blocks find no room",
        30,
        {'kvgrove_node_stores_bypassed_total{node="node-a",reason="no_room"}': "0+600x60"},
        (NODE,),
    ),
    Case(
        "KvgrovePoolPressure",
        "quiet: full, and busy in waves",
        30,
        {
            'kvgrove_node_blocks{node="node-a",state="free"}': "0x60",
            'kvgrove_node_waiting_for_room{node="node-a"}': ("3 0 " * 30).strip(),
            'kvgrove_node_stores_bypassed_total{node="node-a",reason="no_room"}': "0+6x60",
        },
    ),
    Case(
        "KvgrovePoolPressure",
        "quiet: requests wait for eight minutes",
        30,
        {'kvgrove_node_waiting_for_room{node="node-a"}': "0x5 3x8 0x50"},
    ),
    Case(
        "KvgrovePoolPressure",
        "quiet: nothing is stored because the namespace is cold",
        30,
        {'kvgrove_node_stores_bypassed_total{node="node-a",reason="cold"}': "0+6000x60"},
    ),
)

OPERATOR = (
    Case(
        "KvgroveOperatorSilent",
        "it cannot plan any more",
        40,
        {'kvgrove_operator_plan_age_seconds{pod="o-0"}': "0+60x60"},
        ({},),
    ),
    Case(
        "KvgroveOperatorSilent",
        "there is none",
        20,
        {'kvgrove_operator_plan_age_seconds{pod="o-0"}': "30x5 stale"},
        ({},),
    ),
    Case(
        "KvgroveOperatorSilent",
        "quiet: plans every five minutes",
        40,
        {"kvgrove_operator_plan_age_seconds": " ".join(["0+60x4"] * 9)},
    ),
    Case(
        "KvgroveOperatorSilent",
        "quiet: another one takes over within four minutes",
        20,
        {
            'kvgrove_operator_plan_age_seconds{pod="o-0"}': "30x10 stale",
            'kvgrove_operator_plan_age_seconds{pod="o-1"}': "_x14 30x30",
        },
    ),
)

CASES = (*HIT_RATIO, *EVICTIONS, *AGES, *GATEWAYS, *NODES, *OPERATOR)
