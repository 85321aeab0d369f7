"""What can go wrong on the control link."""

from kvgrove_protocol.errors import Retryable, Terminal

SUPERSEDED = "superseded"
"""Refusal: a newer boot of this member is known, or this one said Goodbye. It must not go on."""

HELLO_FIRST = "hello_first"
"""Refusal: the planner does not know this connection. Dial anew."""


class LinkLost(Retryable):
    """The connection to the planner is of no more use; the link dials anew by itself."""

    code = "link_lost"


class FetchTimeout(Retryable):
    """The planner did not send the bodies in time."""

    code = "fetch_timeout"


class Superseded(Terminal):
    """A newer boot of this member has taken its place: this process must end."""

    code = SUPERSEDED
