"""How commands end: errors as one line on stderr, and exit codes that scripts can tell apart.

0: done. 1: the fleet or the machine is in the way. 2: the command, a manifest or another file of the user's has to
change first (one line for each problem of a manifest).
"""

import logging
import sys
from collections.abc import Callable

import click

from kvgrove_cli.errors import UsageProblem
from kvgrove_crds.problems import ManifestError
from kvgrove_protocol.errors import KvgroveError

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def run(command: Callable[[], object]) -> int:
    """The exit code of ``command``, after its error, if any, was told on stderr."""
    try:
        result = command()
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.exceptions.NoArgsIsHelpError as usage:
        click.echo(usage.format_message(), err=True)
        return EXIT_USAGE
    except click.ClickException as usage:
        complain(f"{usage.format_message()} (see --help)")
        return EXIT_USAGE
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except ManifestError as error:
        for problem in error.problems:
            complain(str(problem))
        return EXIT_USAGE
    except KvgroveError as error:
        complain(error.message)
        return EXIT_USAGE if isinstance(error, UsageProblem) else EXIT_FAILED
    return result if isinstance(result, int) else 0  # click answers with the code that a command ended with


def complain(message: str) -> None:
    """One line on stderr, whatever line breaks the message has."""
    click.echo(f"kvgrove: {' '.join(message.split())}", err=True)


def log_to_stderr(level: str) -> None:
    logging.basicConfig(stream=sys.stderr, level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
