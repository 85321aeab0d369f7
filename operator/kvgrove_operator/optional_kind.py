"""Objects of a kind that a cluster may lack, like those of the Prometheus operator: kept where it is known."""

import logging

from kvgrove_operator.kube import Kube, NotFound, Object

log = logging.getLogger("kvgrove_operator")


class OptionalKind:
    """``lost``: what a cluster without it goes without, for people."""

    def __init__(self, kube: Kube, lost: str) -> None:
        self._kube, self._lost = kube, lost
        self._told = False

    async def apply(self, path: str, body: Object) -> None:
        """Apply an object. A cluster without its kind is told of once, and asked again the next time."""
        try:
            await self._kube.apply(path, body)
        except NotFound:
            if not self._told:
                log.info("%s: the cluster has no %ss", self._lost, body["kind"])
            self._told = True
        else:
            self._told = False
