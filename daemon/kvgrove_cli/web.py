"""HTTP as the command line needs it: one bounded request, and errors in one line that name the address and the cure."""

import urllib.error
import urllib.request
from urllib.parse import urlsplit

from kvgrove_cli.errors import FleetProblem, UsageProblem

MAX_BYTES = 64 << 20
TIMEOUT_S = 60.0


def is_url(text: str) -> bool:
    return text.startswith(("http://", "https://"))


def get(url: str, *, key: str = "") -> bytes:
    """``key``: sent as a bearer token, where there is one.

    Raises FleetProblem where nothing, an error or too much answers, UsageProblem for what is no address.
    """
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return _send(urllib.request.Request(url, headers=headers))  # noqa: S310 - `_send` takes http and https alone


def post_json(url: str, body: bytes, *, key: str) -> bytes:
    """``key``: sent as a bearer token. Raises as `get` does; what the server says of an error is in the message."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    return _send(urllib.request.Request(url, body, headers))  # noqa: S310 - as above


def _send(request: urllib.request.Request) -> bytes:
    url = request.full_url
    if urlsplit(url).scheme not in ("http", "https"):
        raise UsageProblem(f"{url}: give an http:// or https:// address")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310 - checked above
            body: bytes = answer.read(MAX_BYTES + 1)
    except urllib.error.HTTPError as error:
        with error:
            said = error.read(4096).decode(errors="replace")
        raise FleetProblem(f"{url}: HTTP {error.code}: {said or error.reason}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise FleetProblem(f"{url}: {reason}; is it running, and the address right?") from None
    if len(body) > MAX_BYTES:
        raise FleetProblem(f"{url}: answers more than {MAX_BYTES} bytes")
    return body
