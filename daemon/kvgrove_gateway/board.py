"""The plan in force, and waiting for a newer one."""

import asyncio

from kvgrove_gateway.namespaces import EMPTY, Directory
from kvgrove_protocol.control import Revision


class PlanBoard:
    """Holds the current directory. On the event loop only."""

    def __init__(self) -> None:
        self.current: Directory = EMPTY
        self._changed = asyncio.Event()

    def publish(self, directory: Directory) -> None:
        """From here on every request resolves against ``directory``."""
        self.current = directory
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def wait_newer(self, revision: Revision, timeout_s: float) -> bool:
        """Whether a plan newer than ``revision`` is in force, waiting for it at most ``timeout_s``."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.current.revision <= revision:
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True
