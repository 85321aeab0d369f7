"""The gate before any traffic: whether a generation is warm enough on every node. Pure.

Warmth is READY / wanted blocks of prompts that were assembled under the new generation itself. What could not be
measured is not taken for cold, and not for warm.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    PASS = "pass"  # noqa: S105 - no password
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    """Measured, and the measure does not tell yet."""
    NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Warmth:
    """What one node reports of one generation of a namespace, in blocks."""

    ready: int
    wanted: int
    resolved: bool
    """Whether ``wanted`` is all that will be: texts may still be on their way."""


def warm_enough(nodes: Collection[str], reports: Mapping[str, Warmth], minimum_ratio: float) -> Verdict:
    """``reports``: node -> of the generation in question. The worst node decides."""
    if not nodes or any(node not in reports for node in nodes):
        return Verdict.NOT_MEASURED
    found = [reports[node] for node in nodes]
    if any(not each.resolved for each in found):
        return Verdict.INCONCLUSIVE
    if all(each.ready >= minimum_ratio * each.wanted for each in found):
        return Verdict.PASS
    return Verdict.FAIL
