"""The namespaces that are declared, as last read: a whole list, and of those on it the ones that were heard of since.

Only a whole list says that an object is gone, since its secret is destroyed for that; it is read whenever something
came or went, or may have been missed. One of a thousand that is changed in place costs one read.
"""

from collections.abc import Iterable
from typing import Final

from kvgrove_operator import paths
from kvgrove_operator.kube import Kube, Object
from kvgrove_operator.objects import path_of

FEW: Final = 32
"""More than these are read as a whole list."""


class Listing:
    """``watched``: Kubernetes namespaces; none: all of them."""

    def __init__(self, kube: Kube, watched: Iterable[str]) -> None:
        self._kube, self._watched = kube, tuple(watched) or ("",)
        self._known: dict[str, Object] = {}
        self._changed: set[str] = set()
        self._anew = True

    def heard(self, held: Object, *, came_or_went: bool) -> None:
        """A watch tells of an object."""
        self._changed.add(path_of(held))
        self._anew = self._anew or came_or_went

    def forget(self) -> None:
        """Read all of them anew: an event may have been missed."""
        self._anew = True

    async def read(self) -> list[Object]:
        """All of them, none older than what was heard before this call. Raises what `Kube` raises."""
        changed, self._changed = self._changed, set()
        anew, self._anew = self._anew or len(changed) > FEW, False
        try:
            if anew or not await self._replace(changed):
                found = [item for name in self._watched for item in await self._kube.list(paths.namespaces(name))]
                self._known = {path_of(item): item for item in found}
        except BaseException:
            self._anew = True
            raise
        return [*self._known.values()]

    async def _replace(self, changed: Iterable[str]) -> bool:
        """Read these; False where one of them is not the object that was listed."""
        for path in changed:
            found, known = await self._kube.get(path), self._known.get(path)
            if found is None or known is None or found["metadata"]["uid"] != known["metadata"]["uid"]:
                return False
            self._known[path] = found
        return True
