"""What the command line reports: one line, and an exit code that scripts can tell apart."""

from kvgrove_protocol.errors import Terminal


class UsageProblem(Terminal):
    """The command, a manifest or a file of the user's has to change first. Exit code 2."""

    code = "usage"


class FleetProblem(Terminal):
    """The fleet could not be started, or could not go on. Exit code 1."""

    code = "fleet"
