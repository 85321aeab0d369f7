"""What the fleet reports, as far as plans depend on it.

Pure. Taken from the members that are connected now: what those who are not said is in the planner's own state.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kvgrove_operator.coming import ComingWarmth
from kvgrove_operator.members import MemberView
from kvgrove_operator.plan_state import Proof
from kvgrove_protocol.control import DAEMON, GenerationReport, Hello, ModelReport, NodeReport, fits
from kvgrove_protocol.fence import Fence, highest

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
    placements: Mapping[str, str] = field(default_factory=dict)
    """Connected daemon -> its placement, of those that have one."""

    def of_placement(self, placement: str) -> frozenset[str]:
        """The connected daemons that hold models of this placement."""
        return frozenset(each for each in self.daemons if fits(self.placements.get(each, ""), placement))


def observe(
    members: Iterable[MemberView], erased: Collection[str] = (), proofs: Mapping[str, Proof] | None = None
) -> Observed:
    """What ``members`` said last: in their Hello and in their latest report."""
    return Observer().observe(members, erased, proofs)


@dataclass(frozen=True)
class _Read:
    """What one member said, as far as plans depend on it."""

    hello: Hello
    report: NodeReport | None
    coming: Mapping[str, ComingWarmth]
    beside: Mapping[str, Beside]


class Observer:
    """The same for one who asks often: each report is read once, and the highest counters stay known."""

    def __init__(self) -> None:
        self._read: dict[str, _Read] = {}
        self._fences: dict[str, Fence] = {}

    def observe(
        self, members: Iterable[MemberView], erased: Collection[str] = (), proofs: Mapping[str, Proof] | None = None
    ) -> Observed:
        daemons: set[str] = set()
        placements: dict[str, str] = {}
        models: dict[str, dict[str, ModelReport]] = {}
        coming: dict[str, dict[str, ComingWarmth]] = {}
        beside: dict[str, dict[str, Beside]] = {}
        before, self._read = self._read, {}
        for view in members:
            member, known = view.hello.member, before.get(view.hello.member)
            if known is None or known.hello is not view.hello or known.report is not view.report:
                known = self._take(view, known)
            self._read[member] = known
            for uid, warmth in known.coming.items():
                coming.setdefault(uid, {})[member] = warmth
            for uid, generations in known.beside.items():
                beside.setdefault(uid, {})[member] = generations
            if view.hello.role == DAEMON:
                daemons.add(member)
                if view.hello.placement:
                    placements[member] = view.hello.placement
                for model in view.report.models if view.report is not None else ():
                    models.setdefault(model.name, {})[member] = model
        for uid in erased:
            self._fences.pop(uid, None)  # nobody can come back with it any more
        fences = dict(self._fences)
        return Observed(frozenset(daemons), models, fences, coming, beside, frozenset(erased), proofs or {}, placements)

    def _take(self, view: MemberView, before: _Read | None) -> _Read:
        hello, fences = view.hello, self._fences
        namespaces = view.report.namespaces if view.report is not None else []
        coming: dict[str, ComingWarmth] = {}
        beside: dict[str, Beside] = {}
        taken: set[int] = set()
        if before is not None and before.hello is hello:  # parts of a report that did not change are the same objects
            taken = {id(each) for each in before.report.namespaces} if before.report is not None else set()
        else:
            for uid, counter in hello.epochs_seen.items():
                fences[uid] = highest(fences.get(uid), Fence(counter, 0, 0))
        for namespace in namespaces:
            if id(namespace) not in taken:
                known = fences.get(namespace.uid)
                if known is None or not known.covers(namespace.fence):
                    fences[namespace.uid] = highest(known, namespace.fence)
            if namespace.coming:
                warmth = ComingWarmth(frozenset(namespace.coming), namespace.coming_ready, namespace.coming_wanted)
                coming[namespace.uid] = warmth
            if namespace.generations:
                source = f"{hello.member}/{hello.boot}"
                beside[namespace.uid] = Beside(hello.role, source, namespace.fence, namespace.generations)
        return _Read(hello, view.report, coming, beside)
