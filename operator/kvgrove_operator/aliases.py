"""Which namespace answers to which alias. Pure.

A claim that was made earlier wins; among claims made at once, the first name in order. The loser is planned without
that alias and nothing else of it changes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kvgrove_crds.namespace import PromptCacheNamespace
from kvgrove_operator.plan_state import NamespaceState


@dataclass(frozen=True)
class AliasClaims:
    held: Mapping[str, str]
    """Alias -> UID of the namespace that answers to it."""

    def of(self, uid: str, declared: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """(those granted, those refused) of ``declared``."""
        granted = tuple(alias for alias in declared if self.held[alias] == uid)
        return granted, tuple(alias for alias in declared if self.held[alias] != uid)


def claim(namespaces: Mapping[str, PromptCacheNamespace], before: Mapping[str, NamespaceState]) -> AliasClaims:
    """``namespaces``: by UID, in the order in which new claims count."""
    held: dict[str, str] = {}
    for uid, namespace in namespaces.items():
        earlier = before[uid].aliases if uid in before else ()
        for alias in namespace.spec.aliases:
            if alias in earlier:
                held.setdefault(alias, uid)
    for uid, namespace in namespaces.items():
        for alias in namespace.spec.aliases:
            held.setdefault(alias, uid)
    return AliasClaims(held)
