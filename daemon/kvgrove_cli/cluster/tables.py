"""Objects as kubectl prints them: columns, one line for each. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

Object = Mapping[str, Any]

_BAR = 24


def namespaces(found: Iterable[Object], now: datetime, *, all_of_them: bool = False) -> str:
    """``all_of_them``: of several Kubernetes namespaces, so that theirs is a column."""
    headings = ["NAME", "READY", "PHASE", "MODEL", "GENERATION", "WARM", "ROLLOUT", "HIT RATIO", "AGE"]
    rows = [
        [
            each["metadata"]["name"],
            condition(each, "Ready").get("status", "Unknown"),
            _status(each).get("phase", "Pending"),
            each["spec"]["modelVersionRef"]["name"],
            _summary(each, "generation"),
            _summary(each, "warm"),
            rollout(each),
            _summary(each, "hitRatio"),
            age(each, now),
        ]
        for each in found
    ]
    if all_of_them:
        headings.insert(0, "NAMESPACE")
        for row, each in zip(rows, found, strict=True):
            row.insert(0, each["metadata"]["namespace"])
    return table(headings, rows)


def nodes(found: Iterable[Object], now: datetime) -> str:
    return table(
        ["NAME", "MEMBER", "READY", "PHASE", "GENERATIONS", "WARM", "NAMESPACES", "LAST REPORT", "AGE"],
        [
            [
                each["metadata"]["name"],
                each["spec"]["member"],
                condition(each, "Ready").get("status", "Unknown"),
                _status(each).get("phase", "Pending"),
                _summary(each, "generations"),
                _summary(each, "warm"),
                str(len(_status(each).get("namespaces", ()))),
                _since(_status(each).get("lastReportTime"), now),
                age(each, now),
            ]
            for each in found
        ],
    )


def details(held: Object, now: datetime) -> str:
    """One namespace: its line, a bar, and every condition with its reason."""
    conditions = table(
        ["CONDITION", "STATUS", "REASON", "SINCE", "MESSAGE"],
        [
            [each["type"], each["status"], each["reason"], _since(each["lastTransitionTime"], now), each["message"]]
            for each in _status(held).get("conditions", ())
        ],
    )
    return "\n".join([namespaces([held], now), "", progress(held), "", conditions])


def progress(held: Object) -> str:
    """How far it is, on one line: traffic while that is being shifted, else warmth."""
    status = _status(held)
    moving, warmth = status.get("rollout", {}), status.get("warmth", {})
    if moving.get("phase") in ("Shifting", "AwaitingApproval", "RollingBack"):
        weight = int(moving.get("weight", 0))
        steps = len(held["spec"].get("rollout", {}).get("steps", ())) or 3
        said = f"{weight}% of new conversations, step {int(moving.get('step', 0)) + 1} of {steps}"
        return f"{moving['phase']:<16} {bar(weight / 100)} {said}"
    ready, wanted = int(warmth.get("ready", 0)), int(warmth.get("wanted", 0))
    share = ready / wanted if wanted else float(condition(held, "Warm").get("status") == "True")
    return f"{status.get('phase', 'Pending'):<16} {bar(share)} {share:.0%}, {ready} of {wanted} blocks warm"


def bar(share: float) -> str:
    full = round(max(0.0, min(1.0, share)) * _BAR)
    return f"[{'#' * full}{'-' * (_BAR - full)}]"


def rollout(held: Object) -> str:
    found = _status(held).get("rollout", {})
    phase = str(found.get("phase", ""))
    return f"{phase} {found.get('weight', 0)}%" if phase == "Shifting" else phase


def condition(held: Object, kind: str) -> Mapping[str, Any]:
    """Empty where there is none yet."""
    return next((each for each in _status(held).get("conditions", ()) if each["type"] == kind), {})


def is_current(held: Object, kind: str) -> bool:
    """Whether that condition holds of the spec as it is now."""
    found = condition(held, kind)
    return bool(found.get("status") == "True" and found.get("observedGeneration") == held["metadata"]["generation"])


def age(held: Object, now: datetime) -> str:
    return _since(held["metadata"].get("creationTimestamp"), now)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they must be, three spaces between them, as kubectl has it; nothing is <none>."""
    lines = [headings, *([cell or "<none>" for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    return "\n".join(
        "   ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _status(held: Object) -> Mapping[str, Any]:
    found: Mapping[str, Any] = held.get("status", {})
    return found


def _summary(held: Object, name: str) -> str:
    return str(_status(held).get("summary", {}).get(name, ""))


def _since(moment: str | None, now: datetime) -> str:
    if moment is None:
        return ""
    seconds = max(0, int((now - datetime.fromisoformat(moment).astimezone(UTC)).total_seconds()))
    for unit, length, until in (("s", 1, 120), ("m", 60, 7200), ("h", 3600, 172_800)):
        if seconds < until:
            return f"{seconds // length}{unit}"
    return f"{seconds // 86_400}d"
