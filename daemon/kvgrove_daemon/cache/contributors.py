"""Whose text a block may hold, as sets of pseudonyms.

Role: what a block's tag means, how it grows, and which erasures it answers to. Invariants: a tag never shrinks while
its block lives, and at most `MOST` contributors are told apart: beyond that users melt into their tenant, and tenants
into `MANY`, so that what is no longer told apart is erased with each of those it may belong to (I8, I11).
Along a chain tags only shrink: whoever reuses a block reuses its ancestors. A tail that covers a contributor therefore
says that the whole private part before it does.
Must not know: names behind pseudonyms, blocks, realms.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from kvgrove_protocol.identity import NOBODY, Contributor

MOST: Final = 8
"""Contributors told apart in one tag."""
MANY: Final = Contributor(user=b"*")
"""Somebody, and nobody knows who: every erasure of a contributor means it."""

Tag = frozenset[Contributor]
DECLARED: Final[Tag] = frozenset()
"""Of blocks that hold declared texts only: no erasure of a contributor means them."""
ANYBODY: Final[Tag] = frozenset({MANY})


def tag_of(who: Contributor) -> Tag:
    """The tag of private text that ``who`` sent; where that is not known, of anybody's."""
    return frozenset({who}) if who.tenant else ANYBODY


def tag_from(contributors: Iterable[Contributor]) -> Tag:
    """The tag that `listed` wrote out."""
    found = frozenset(contributors)
    return DECLARED if found == {NOBODY} else ANYBODY if MANY in found else found


def listed(tag: Tag) -> tuple[Contributor, ...]:
    """The tag as facts that can be stored: ``(NOBODY,)`` for declared texts, ``(MANY,)`` for anybody's."""
    return tuple(sorted(tag, key=lambda who: (who.tenant, who.user))) if tag else (NOBODY,)


def covers(tag: Tag, who: Contributor) -> bool:
    """Whether every erasure that means ``who`` means this tag already."""
    return who in tag or MANY in tag or Contributor(who.tenant) in tag


def joined(one: Tag, other: Tag) -> Tag:
    """The tag that answers to every erasure that either of the two answers to."""
    if other <= one:
        return one
    both = one | other
    if MANY in both:
        return ANYBODY
    whole = {who.tenant for who in both if not who.user}
    both = frozenset(who for who in both if not who.user or who.tenant not in whole)
    if len(both) > MOST:
        both = frozenset(Contributor(who.tenant) for who in both)
    return both if len(both) <= MOST else ANYBODY


def owner(tag: Tag) -> Contributor:
    """Who is charged for a block that is stored with this tag: the contributor, their tenant, `MANY` or `NOBODY`."""
    if not tag:
        return NOBODY
    if len(tag) == 1:
        return next(iter(tag))
    tenants = {who.tenant for who in tag}
    return Contributor(tenants.pop()) if len(tenants) == 1 else MANY


def means(selector: Contributor, tag: Tag) -> bool:
    """Whether an erasure of ``selector`` (a tenant, or with ``user`` one user of it) includes a block of this tag.

    Users that are not known include everybody of their tenant, `MANY` includes all.
    """
    return any(
        who == MANY or (who.tenant == selector.tenant and (not selector.user or who.user in (b"", selector.user)))
        for who in tag
    )


class Group(NamedTuple):
    """Who is charged for a block."""

    namespace: str
    tenant: bytes = b""
    """Pseudonym of the tenant who built it; empty for declared texts, and where it is not known."""


@dataclass(frozen=True, slots=True)
class Writer:
    """Who sends a prompt, and where in its chain what they say begins."""

    contributor: Contributor = MANY
    private_from: int = 0
    """The first block that holds a token which is not declared text."""

    @property
    def tag(self) -> Tag:
        return tag_of(self.contributor)

    def tags(self, first: int, stop: int) -> dict[int, Tag]:
        """Of blocks ``[first, stop)``: offset -> the tag from there on."""
        at = self.private_from - first
        if at <= 0:
            return {0: self.tag}
        return {0: DECLARED} if at >= stop - first else {0: DECLARED, at: self.tag}


UNKNOWN_WRITER: Final = Writer()
