"""``update: WarmFirst``: the next version of a document waits, reserved, until the nodes have it warm or time is up.

Pure. The older version stays in force meanwhile, and its fence too. The next one gets its epoch when it is first seen,
so that what nodes compute for it ahead of time has the keys that requests will form after the switch; an epoch is never
given twice, so that a version that was given up can never be met again.

What is cut all the same: a change of who may refer to the document, of who may use the namespace, and a purge. Those
are what somebody relies on being gone. All waiting versions of a namespace are warmed together, in one assembly of each
prefix, and switch together; one whose own time is up switches alone.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kvgrove_crds.namespace_content import DocumentSpec
from kvgrove_operator.plan_state import ComingEntry, DocumentEntry


@dataclass(frozen=True)
class ComingWarmth:
    """What one daemon reports of the versions that wait."""

    epochs: frozenset[int]
    """Of the versions that the counts are of."""
    ready: int
    wanted: int
    """Blocks."""

    def reaches(self, epochs: frozenset[int], minimum_ratio: float) -> bool:
        return self.epochs == epochs and self.ready >= minimum_ratio * self.wanted


@dataclass(frozen=True)
class ComingRules:
    """By what the switch is judged, at this moment."""

    now: float
    """Unix seconds."""
    minimum_ratio: float
    daemons: frozenset[str]
    """All that must be warm: those that are connected."""
    warmth: Mapping[str, ComingWarmth]
    """Daemon -> its report."""
    cut: bool = False
    """A purge or a change of access: nothing waits."""

    def warm(self, coming: Iterable[ComingEntry]) -> bool:
        epochs = frozenset(each.entry.epoch for each in coming)
        if not epochs or not self.daemons:
            return False
        return all(
            daemon in self.warmth and self.warmth[daemon].reaches(epochs, self.minimum_ratio) for daemon in self.daemons
        )


def waits(document: DocumentSpec, held: DocumentEntry | None, wanted: DocumentEntry, *, old_text: bool) -> bool:
    """Whether ``wanted`` may wait while ``held`` stays in force. ``old_text``: whether it can still be handed out."""
    if held is None or document.update != "WarmFirst" or not old_text:
        return False
    return set(held.scopes) == set(wanted.scopes)


def switched(coming: Mapping[str, ComingEntry], rules: ComingRules) -> frozenset[str]:
    """Names of the documents whose next version comes into force now."""
    if rules.cut or rules.warm(coming.values()):
        return frozenset(coming)
    return frozenset(name for name, each in coming.items() if rules.now >= each.deadline)
