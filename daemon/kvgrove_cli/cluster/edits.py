"""Which edit of a namespace's spec does what a person asks for. Pure: from objects to the part of the spec to merge.

Raises UsageProblem where there is nothing to do, with what helps.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from kvgrove_cli.errors import UsageProblem

Object = Mapping[str, Any]
Spec = dict[str, Any]


def purge(held: Object) -> Spec:
    """Invalidate everything of it."""
    return {"purge": {"epoch": int(held["spec"].get("purge", {}).get("epoch", 1)) + 1}}


def approve(held: Object) -> Spec:
    """Let the generation that waits take traffic."""
    status = held.get("status", {})
    wanted = status.get("desiredGeneration")
    if not wanted or wanted == status.get("activeGeneration"):
        raise UsageProblem(f"{_name(held)}: no generation waits for approval")
    return {"rollout": {"approvedGeneration": wanted}}


def suspend(held: Object, *, suspended: bool) -> Spec:
    """Stop at this step, or go on from it; while it is suspended requests are answered without the cache."""
    if bool(held["spec"].get("suspend", False)) is suspended:
        raise UsageProblem(f"{_name(held)}: it is {'paused' if suspended else 'not paused'} already")
    return {"suspend": suspended}


def undo(held: Object, models: Iterable[Object], to: str | None = None) -> Spec:
    """Go back to the ModelVersion ``to``, or to the one that answered before: that of the active generation while
    another one is on its way, else that of the generation before.
    """
    status, current = held.get("status", {}), held["spec"]["modelVersionRef"]["name"]
    names = {each.get("status", {}).get("generation"): each["metadata"]["name"] for each in models}
    if to is None:
        moving = status.get("desiredGeneration") != status.get("activeGeneration")
        generation = status.get("activeGeneration") if moving else status.get("previousGeneration")
        to = names.get(generation) if generation else None
    if to is None:
        raise UsageProblem(f"{_name(held)}: no ModelVersion of an earlier generation is there; name one with --to")
    if to not in names.values():
        raise UsageProblem(f"--to: there is no ModelVersion {to}; it is one of {', '.join(sorted(names.values()))}")
    if to == current:
        raise UsageProblem(f"{_name(held)}: it names {to} already")
    return {"modelVersionRef": {"name": to}}


def history(held: Object, models: Iterable[Object]) -> list[list[str]]:
    """Rows of role, generation and ModelVersion, the newest first."""
    status = held.get("status", {})
    names = {each.get("status", {}).get("generation"): each["metadata"]["name"] for each in models}
    rows: list[list[str]] = []
    for role in ("desired", "active", "previous"):
        generation = status.get(f"{role}Generation")
        if generation and all(generation != row[1] for row in rows):
            rows.append([role, generation, names.get(generation, "")])
    return [[role, generation[:12], name] for role, generation, name in rows]


def _name(held: Object) -> str:
    return f"{held['metadata']['namespace']}/{held['metadata']['name']}"
