"""What came of each namespace the last time it was planned, for as long as planning it again would say the same.

Of a thousand namespaces one changes at a time. Only what depends on nothing that is under way is remembered: no
rollout, no coming document, no erasure, no text that is missing. Whatever `plan_namespace` reads is compared, so
remembering changes no plan; it is faster, and what did not change is the same object.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from kvgrove_crds.namespace import PromptCacheNamespace
from kvgrove_operator.observed import Observed
from kvgrove_operator.plan_namespace import PlannedNamespace, Surroundings
from kvgrove_operator.plan_state import ModelState, NamespaceState
from kvgrove_protocol.control import ModelReport
from kvgrove_protocol.fence import Fence

Claims = tuple[tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True)
class _Known:
    resource: PromptCacheNamespace
    seen: Fence | None
    claims: Claims
    result: PlannedNamespace


class PlanMemo:
    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._models: dict[str, ModelState] = {}
        self._reports: dict[str, dict[str, ModelReport]] = {}
        self._daemons: tuple[frozenset[str], Mapping[str, str]] = frozenset(), {}

    @property
    def remembered(self) -> frozenset[str]:
        """UIDs of which something is remembered."""
        return frozenset(self._known)

    def begin(self, around: Surroundings) -> None:
        """A planning begins. Where models, what is reported of them or the daemons differ, nothing is remembered."""
        observed = around.observed
        reports = {name: dict(of_it) for name, of_it in observed.models.items()}
        daemons = observed.daemons, observed.placements
        if (around.models.states, reports, daemons) != (self._models, self._reports, self._daemons):
            self._known.clear()
        self._models, self._reports, self._daemons = dict(around.models.states), reports, daemons

    def recall(
        self, uid: str, resource: PromptCacheNamespace, before: NamespaceState | None, around: Surroundings
    ) -> PlannedNamespace | None:
        """What planning it now would give; None: not known."""
        known = self._known.get(uid)
        if known is None or known.resource is not resource or known.result.state is not before:
            return None
        due = known.result.due
        if _under_way(uid, around.observed) or (due is not None and due <= around.now):
            return None
        if (known.seen, known.claims) != (around.observed.fences_seen.get(uid), _claims(uid, resource, around)):
            return None
        return known.result

    def note(
        self, uid: str, resource: PromptCacheNamespace, around: Surroundings, result: PlannedNamespace
    ) -> PlannedNamespace:
        """``result``, which came of planning it."""
        state = result.state
        moves = state.erasures or state.coming or (state.rollout is not None and state.rollout.candidate is not None)
        if moves or result.problems or _under_way(uid, around.observed):
            self._known.pop(uid, None)
        else:
            seen = around.observed.fences_seen.get(uid)
            self._known[uid] = _Known(resource, seen, _claims(uid, resource, around), result)
        return result

    def keep(self, uids: Collection[str]) -> None:
        """Forget all others."""
        self._known = {uid: known for uid, known in self._known.items() if uid in uids}


def _under_way(uid: str, observed: Observed) -> bool:
    return uid in observed.coming or uid in observed.beside


def _claims(uid: str, resource: PromptCacheNamespace, around: Surroundings) -> Claims:
    return around.aliases.of(uid, resource.spec.aliases)
