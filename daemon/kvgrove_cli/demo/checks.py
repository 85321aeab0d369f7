"""What the demo's rows must show. Pure: rows in, verdicts out."""

from collections.abc import Mapping
from dataclasses import dataclass

from kvgrove_cli.demo.rows import Row
from kvgrove_protocol.reasons import MissReason

COLD = "cold request"
WARM = "another question, same prefix"
AGAIN = "the first prompt again"
OTHER_TENANT = "the first prompt, other tenant"
DOCUMENT_CHANGED = "document changed"
REWARMED = "new version re-warmed"
NEW_MODEL = "new ModelVersion"
ROLLED_BACK = "back on the old ModelVersion"
NODE_KILLED = "one daemon killed"

SHARED_TOKENS = 1_000
"""The declared prefix is at least this long, so a warm request reuses at least as many."""
SPEED_UP = 10


@dataclass(frozen=True)
class Facts:
    """What the fleet's status said at the points of the story where it matters."""

    document_invalidation_complete: bool
    """Before the request that followed the document's change."""
    generations_side_by_side: bool
    """Two ModelVersions of different generations were ready at once."""
    killed_node: str


def judge(rows: Mapping[str, Row], facts: Facts) -> dict[str, bool]:
    """Name of a check -> whether it holds. ``rows`` by the names above."""
    cold, warm, again, other = rows[COLD], rows[WARM], rows[AGAIN], rows[OTHER_TENANT]
    changed, rewarmed = rows[DOCUMENT_CHANGED], rows[REWARMED]
    new_model, rolled_back, killed = rows[NEW_MODEL], rows[ROLLED_BACK], rows[NODE_KILLED]
    return {
        "every_token_accounted_for": all(row.adds_up for row in rows.values()),
        "cold_request_reuses_nothing": cold.reused_tokens == 0,
        "shared_prefix_is_reused": warm.reused_tokens >= SHARED_TOKENS,
        "warm_first_token_in_a_tenth_of_the_time": warm.ttft_s * SPEED_UP <= cold.ttft_s,
        "same_tenant_reuses_its_own_text": again.reused_tokens > warm.reused_tokens,
        "other_tenant_reuses_declared_text_only": SHARED_TOKENS <= other.reused_tokens < again.reused_tokens,
        "other_tenant_learns_nothing": set(other.miss_reasons) <= {MissReason.NEW, MissReason.PARTIAL_BLOCK},
        "invalidation_complete_before_the_next_request": facts.document_invalidation_complete,
        "changed_document_is_not_reused": (
            changed.reused_tokens < warm.reused_tokens and changed.miss_reasons.get(MissReason.DOCUMENT_CHANGED, 0) > 0
        ),
        "new_version_is_warm_before_it_is_asked": rewarmed.reused_tokens >= SHARED_TOKENS,
        "generations_live_side_by_side": facts.generations_side_by_side,
        "new_model_version_reuses_nothing": (
            new_model.reused_tokens == 0 and new_model.miss_reasons.get(MissReason.GENERATION_CHANGED, 0) > 0
        ),
        "old_model_version_is_still_warm": rolled_back.reused_tokens >= SHARED_TOKENS,
        "a_killed_daemon_fails_no_request": killed.node not in ("", facts.killed_node),
    }
