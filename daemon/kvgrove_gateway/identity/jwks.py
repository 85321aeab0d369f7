"""An issuer's public keys: fetched, kept through an outage, and asked for anew at a bounded rate.

`KeyState` and its pure rules say when to fetch and until when keys count; `JwksSource` does the fetching.

====================================  ==================================================================
a token names a known key             verified by it, no fetch
a token names an unknown key          one fetch, but never within ``retrySeconds`` of the last one
``refreshSeconds`` have passed        fetched again in the background; a withdrawn key is gone then
a fetch fails                         the last good keys stay, fetched again after ``retrySeconds``
``keepSeconds`` since the last good   no key counts: tokens are answered with 503, for they may be good
====================================  ==================================================================
"""

import asyncio
import json
import logging
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from jwt.algorithms import AllowedPublicKeys

from kvgrove_gateway.errors import Unavailable
from kvgrove_gateway.identity.files import BrokenFile, read_bounded
from kvgrove_gateway.identity.oidc_config import KeysSource

log = logging.getLogger(__name__)

MAX_JWKS_BYTES = 1 << 20
MAX_KEYS = 256

_ASYMMETRIC = ("RSA", "EC", "OKP")


class JwksFailure(Exception):
    """The keys could not be had: ``args[0]`` says why in a word or two, without the source's own text."""


@dataclass(frozen=True)
class IssuerKey:
    """One public key of an issuer."""

    public: AllowedPublicKeys
    family: str
    """``RSA``, ``EC`` or ``OKP``."""
    algorithm: str | None
    """The one algorithm it is for, where the issuer says so."""


@dataclass(frozen=True)
class KeyState:
    """What is known of an issuer's keys. Times are a monotonic clock's seconds."""

    keys: Mapping[str | None, IssuerKey] = field(default_factory=dict)
    fetched: float | None = None
    """When these keys were read."""
    tried: float | None = None
    """When a fetch last ended, well or not."""
    failed: bool = False


def may_fetch(state: KeyState, source: KeysSource, now: float) -> bool:
    """Whether somebody who misses a key may ask for a fetch."""
    return state.tried is None or now >= state.tried + source.retry_seconds


def next_fetch(state: KeyState, source: KeysSource) -> float:
    """When the background fetches again; a time in the past means now."""
    if state.tried is None:
        return float("-inf")
    return state.tried + (source.retry_seconds if state.failed else source.refresh_seconds)


def usable(state: KeyState, source: KeysSource, now: float) -> bool:
    """Whether the keys still count."""
    return state.fetched is not None and now < state.fetched + source.keep_seconds


def parse_jwks(body: bytes) -> dict[str | None, IssuerKey]:
    """``kid`` -> key, of the asymmetric keys for signatures; raises JwksFailure for what is no key set.

    Keys that cannot be used here are left out; a set without one that can is a failure, not an empty set.
    """
    try:
        listed = json.loads(body)["keys"]
        entries = [entry for entry in listed if isinstance(entry, dict)]
    except (ValueError, RecursionError, TypeError, KeyError):
        raise JwksFailure("not a JWK set") from None
    if len(entries) > MAX_KEYS:
        raise JwksFailure(f"more than {MAX_KEYS} keys")
    keys: dict[str | None, IssuerKey] = {}
    for entry in entries:
        if entry.get("kty") not in _ASYMMETRIC or entry.get("use", "sig") != "sig":
            continue
        try:
            # Numbers and lists have no place in the parts of a key; libraries differ in how they choke on them.
            key = jwt.PyJWK({name: value for name, value in entry.items() if isinstance(value, str)})
        except (jwt.PyJWTError, UnsupportedAlgorithm, ValueError, TypeError):
            continue
        kid, algorithm = entry.get("kid"), entry.get("alg")
        keys.setdefault(
            kid if isinstance(kid, str) else None,
            IssuerKey(key.key, entry["kty"], algorithm if isinstance(algorithm, str) else None),
        )
    if not keys:
        raise JwksFailure("no usable key")
    return keys


class JwksSource:
    """The keys of one issuer. On the event loop only; fetching is done in a thread."""

    def __init__(
        self,
        source: KeysSource,
        *,
        fetch: Callable[[KeysSource], bytes],
        clock: Callable[[], float],
        count: Callable[[str], None],
        name: str,
    ) -> None:
        """``fetch`` blocks and raises JwksFailure. ``count``: told ``ok`` or ``failed`` after each fetch."""
        self._source = source
        self._fetch = fetch
        self._clock = clock
        self._count = count
        self._name = name
        self._state = KeyState()
        self._fetching = asyncio.Lock()

    @property
    def age_s(self) -> float | None:
        """Since the keys were last read; None before the first time."""
        return None if self._state.fetched is None else self._clock() - self._state.fetched

    async def key(self, kid: str | None) -> IssuerKey | None:
        """The key with that id, or the only one where a token names none; None if the issuer has no such key.

        Raises Unavailable where no keys are known, or only ones that are too old to count.
        """
        found = self._find(kid)
        if found is None and may_fetch(self._state, self._source, self._clock()):
            async with self._fetching:
                found = self._find(kid)
                if found is None and may_fetch(self._state, self._source, self._clock()):
                    await self._fetch_now()
                    found = self._find(kid)
        if found is None and not usable(self._state, self._source, self._clock()):
            raise Unavailable("The identity provider cannot be reached: try again later.", code="keys_unavailable")
        return found

    async def keep_fresh(self) -> None:
        """Fetch whenever it is time; never returns."""
        while True:
            wait = next_fetch(self._state, self._source) - self._clock()
            if wait > 0:
                await asyncio.sleep(wait)
                continue
            async with self._fetching:
                if next_fetch(self._state, self._source) <= self._clock():
                    await self._fetch_now()

    def _find(self, kid: str | None) -> IssuerKey | None:
        state = self._state
        if not usable(state, self._source, self._clock()):
            return None
        if kid is None:
            return next(iter(state.keys.values())) if len(state.keys) == 1 else None
        return state.keys.get(kid)

    async def _fetch_now(self) -> None:
        try:
            keys = parse_jwks(await asyncio.to_thread(self._fetch, self._source))
        except JwksFailure as failure:
            if not self._state.failed:  # told once, not at every attempt of an outage
                log.warning("keys of %s: %s; the last good ones stay in force", self._name, failure)
            self._state = replace(self._state, tried=self._clock(), failed=True)
            self._count("failed")
            return
        if keys.keys() != self._state.keys.keys():
            log.info("keys of %s taken over: %d", self._name, len(keys))
        now = self._clock()
        self._state = KeyState(keys, fetched=now, tried=now)
        self._count("ok")


def fetch_jwks(source: KeysSource) -> bytes:
    """The key set's bytes, from its file or URL. Blocks, at most about ``timeoutSeconds``; raises JwksFailure."""
    if source.file is not None:
        try:
            return read_bounded(Path(source.file))
        except BrokenFile:
            raise JwksFailure("the file cannot be read") from None
    return _over_http(source)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Keys come from the URL that was configured, over the scheme that was checked."""

    def redirect_request(self, *_: Any) -> None:
        return None


_opener = urllib.request.build_opener(_NoRedirects)


def _over_http(source: KeysSource) -> bytes:
    request = urllib.request.Request(source.url or "", headers={"Accept": "application/json"})  # noqa: S310 - checked
    try:
        with _opener.open(request, timeout=source.timeout_seconds) as answer:
            return _bounded(answer)
    except urllib.error.HTTPError as error:
        with error:
            raise JwksFailure(f"status {error.code}") from None
    except (OSError, ValueError) as error:  # URLError and time-outs are OSErrors
        raise JwksFailure(type(error).__name__) from None


def _bounded(answer: IO[bytes]) -> bytes:
    body = answer.read(MAX_JWKS_BYTES + 1)
    if len(body) > MAX_JWKS_BYTES:
        raise JwksFailure(f"larger than {MAX_JWKS_BYTES} bytes")
    return body
