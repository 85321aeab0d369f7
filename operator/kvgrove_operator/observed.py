"""What the fleet reports, as far as plans depend on it.

Pure. Taken from the members that are connected now: what those who are not said is in the planner's own state.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kvgrove_operator.coming import ComingWarmth
from kvgrove_operator.members import MemberView
from kvgrove_operator.plan_state import Proof
from kvgrove_protocol.control import DAEMON, GenerationReport, ModelReport
from kvgrove_protocol.fence import Fence

READY = "ready"


@dataclass(frozen=True)
class Beside:
    """What one connected member reports of the generations of a namespace that has several."""

    role: str
    source: str
    """``member/boot``: counts rise for as long as it stays the same."""
    fence: Fence
    """Under which it is so."""
    reports: Sequence[GenerationReport]


@dataclass(frozen=True)
class Observed:
    daemons: frozenset[str] = frozenset()
    """Names of the daemons that are connected."""
    models: Mapping[str, Mapping[str, ModelReport]] = field(default_factory=dict)
    """Model name -> daemon -> its report."""
    fences_seen: Mapping[str, Fence] = field(default_factory=dict)
    """Namespace UID -> the highest counters that any member has ever applied."""
    coming: Mapping[str, Mapping[str, ComingWarmth]] = field(default_factory=dict)
    """Namespace UID -> daemon -> how warm the waiting versions of its documents are; only where any wait."""
    beside: Mapping[str, Mapping[str, Beside]] = field(default_factory=dict)
    """Namespace UID -> member -> what it reports of its generations; only where there are several."""
    erased: Collection[str] = ()
    """UIDs of removed namespaces for which all evidence is there."""
    proofs: Mapping[str, Proof] = field(default_factory=dict)
    """Id of an erasure for which all evidence is there -> that evidence."""


def observe(
    members: Iterable[MemberView], erased: Collection[str] = (), proofs: Mapping[str, Proof] | None = None
) -> Observed:
    """What ``members`` said last: in their Hello and in their latest report."""
    daemons: set[str] = set()
    models: dict[str, dict[str, ModelReport]] = {}
    fences: dict[str, Fence] = {}
    coming: dict[str, dict[str, ComingWarmth]] = {}
    beside: dict[str, dict[str, Beside]] = {}
    for view in members:
        for uid, counter in view.hello.epochs_seen.items():
            fences[uid] = _higher(fences.get(uid), Fence(counter, 0, 0))
        if view.hello.role == DAEMON:
            daemons.add(view.hello.member)
        if view.report is None:
            continue
        for namespace in view.report.namespaces:
            fences[namespace.uid] = _higher(fences.get(namespace.uid), namespace.fence)
            if namespace.coming:
                warmth = ComingWarmth(frozenset(namespace.coming), namespace.coming_ready, namespace.coming_wanted)
                coming.setdefault(namespace.uid, {})[view.hello.member] = warmth
            if namespace.generations:
                hello = view.hello
                source = f"{hello.member}/{hello.boot}"
                found = Beside(hello.role, source, namespace.fence, namespace.generations)
                beside.setdefault(namespace.uid, {})[hello.member] = found
        if view.hello.role == DAEMON:
            for model in view.report.models:
                models.setdefault(model.name, {})[view.hello.member] = model
    return Observed(frozenset(daemons), models, fences, coming, beside, frozenset(erased), proofs or {})


def _higher(one: Fence | None, other: Fence) -> Fence:
    if one is None:
        return other
    return Fence(
        purge=max(one.purge, other.purge),
        documents=max(one.documents, other.documents),
        access=max(one.access, other.access),
    )
