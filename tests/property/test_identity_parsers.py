"""Whatever is in a header, a token, a key set or a settings file: a verdict of ours, never an error of a library's."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgrove_gateway.errors import Unauthorized
from kvgrove_gateway.identity.authenticator import credential
from kvgrove_gateway.identity.files import BrokenFile
from kvgrove_gateway.identity.jwks import JwksFailure, JwksSource, parse_jwks
from kvgrove_gateway.identity.key_file import parse_keys
from kvgrove_gateway.identity.oidc_config import KeysSource, OidcConfig, parse_oidc
from kvgrove_gateway.identity.tokens import TokenVerifier, identity_of
from kvgrove_gateway.protection.rates import parse_rate_limits

URL = "https://id.example"
CONFIG = parse_oidc(
    json.dumps(
        {
            "jwt": [
                {
                    "issuer": {"url": URL, "audiences": ["a"]},
                    "jwks": {"url": URL},
                    "claimMappings": {"tenant": {"claim": ["a", "b"]}, "operators": {"claim": "g", "anyOf": ["sre"]}},
                }
            ]
        }
    ).encode()
)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
names = st.sampled_from(["kty", "kid", "use", "alg", "n", "e", "crv", "x", "y", "k"])
key_like = st.dictionaries(
    names, values | st.sampled_from(["RSA", "EC", "OKP", "sig", "P-256", "Ed25519", "AQAB", "AAAA"]), max_size=8
)


def refused_keys(_: KeysSource) -> bytes:
    raise JwksFailure("nothing here")


@given(st.lists(st.tuples(st.sampled_from([b"authorization", b"x-api-key", b"X-Api-Key"]), st.binary(max_size=60))))
def test_headers(headers: list[tuple[bytes, bytes]]) -> None:
    with suppress(Unauthorized):
        assert credential(headers)


@pytest.mark.parametrize("parse", [parse_keys, parse_oidc, parse_rate_limits])
@given(
    content=st.binary(max_size=200)
    | st.text(max_size=200).map(str.encode)
    | values.map(lambda each: repr(each).encode())
)
def test_settings_files(parse: Callable[[bytes], Any], content: bytes) -> None:
    with suppress(BrokenFile):
        parse(content)


@given(st.binary(max_size=200) | st.lists(key_like, max_size=4).map(lambda keys: json.dumps({"keys": keys}).encode()))
def test_key_sets(body: bytes) -> None:
    with suppress(JwksFailure):
        assert parse_jwks(body)


def part(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


parts = (
    st.text(max_size=40)
    | values.map(part)
    | st.sampled_from(
        [part({"alg": "RS256", "kid": "a"}), part({"iss": URL}), part({"alg": "none"}), part({"alg": ["RS256"]})]
    )
)


@given(st.lists(parts, min_size=3, max_size=3).map(".".join))
def test_tokens(token: str) -> None:
    source = JwksSource(CONFIG.jwt[0].jwks, fetch=refused_keys, clock=lambda: 0.0, count=lambda _: None, name="x")
    verifier = TokenVerifier(CONFIG, {URL: source}, now=lambda: 0.0)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - which one is what is asserted
        asyncio.run(verifier.identify(token))
    assert getattr(caught.value, "status", None) in (401, 503), repr(caught.value)


@given(st.dictionaries(st.sampled_from(["a", "sub", "scope", "g"]), values | st.dictionaries(st.just("b"), values)))
def test_i2_isolated_claims_give_an_identity_with_a_tenant_or_none_at_all(claims: dict[str, Any]) -> None:
    assert isinstance(CONFIG, OidcConfig)
    try:
        identity = identity_of(CONFIG.jwt[0], claims)
    except Unauthorized:
        return
    assert identity.caller.tenant == claims["a"]["b"] != ""
    assert identity.caller.user in (None, claims.get("sub"))
    assert not identity.operator or "sre" in claims["g"]
