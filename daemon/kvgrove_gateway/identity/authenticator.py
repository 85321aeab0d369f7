"""A request's headers -> its identity. The one door: whoever serves a request takes its identity from here."""

from collections.abc import Iterable

from kvgrove_gateway.errors import Unauthorized
from kvgrove_gateway.identity.caller import Identity
from kvgrove_gateway.identity.key_ring import KeyRing
from kvgrove_gateway.identity.tokens import TokenVerifier, looks_like_a_token


class Authenticator:
    """API keys, and tokens where issuers are configured."""

    def __init__(self, keys: KeyRing, tokens: TokenVerifier | None) -> None:
        self._keys = keys
        self._tokens = tokens

    async def identify(self, headers: Iterable[tuple[bytes, bytes]]) -> Identity:
        """Raises Unauthorized, or Unavailable where an issuer's keys cannot be had."""
        secret = credential(headers)
        identity = await self._keys.identify(secret)
        if identity is not None:
            return identity
        if self._tokens is not None and looks_like_a_token(secret):
            return await self._tokens.identify(secret)
        raise Unauthorized("Incorrect API key.")


def credential(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """What ``Authorization: Bearer`` or ``x-api-key`` (Anthropic's SDK) carries; raises Unauthorized.

    Both are taken where they say the same. Two that differ are refused: nothing here may depend on which one a proxy
    in between has looked at.
    """
    found: set[str] = set()
    for name, value in headers:
        text = value.decode("latin-1").strip()
        match name.lower():
            case b"authorization":
                scheme, _, secret = text.partition(" ")
                if scheme.lower() != "bearer" or not secret.strip():
                    raise _missing()
                found.add(secret.strip())
            case b"x-api-key" if text:
                found.add(text)
    if not found:
        raise _missing()
    if len(found) > 1:
        raise Unauthorized("Two credentials that differ: send one of Authorization and x-api-key.")
    return found.pop()


def _missing() -> Unauthorized:
    return Unauthorized("No API key: send it as 'Authorization: Bearer <key>'.", code="missing_api_key")
