"""Whether callers are told why their tokens were computed, and how: the extension's ``missed``, and a response header.

Reasons follow from the caller's own realm alone, so telling them is safe (I2); a gateway may still be set to tell only
those who ask, or nobody, and a request may do without. Usage, and what metrics count, are the same either way.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from kvgrove_protocol.reasons import MissReason

HEADER: Final = "x-kvgrove-cache"


class Telling(StrEnum):
    """A gateway's setting."""

    ALWAYS = "always"
    """Unless the request says ``"kvgrove": {"reasons": false}``."""
    ASKED = "asked"
    """Where the request says ``true``."""
    NEVER = "never"
    """Whatever the request says."""

    def tells(self, wish: bool | None) -> bool:
        """``wish``: what the request says; None: nothing."""
        match self:
            case Telling.ALWAYS:
                return wish is not False
            case Telling.ASKED:
                return wish is True
            case Telling.NEVER:
                return False


def header(reused: int, missed: Mapping[MissReason, int]) -> str:
    """``reused=TOKENS; REASON=TOKENS; ...``: with ``reused`` they add up to the prompt (I10)."""
    counts = [("reused", reused), *sorted((reason.value, count) for reason, count in missed.items())]
    return "; ".join(f"{name}={count}" for name, count in counts)
