"""OIDC tokens against a real key server on loopback: what is taken, what is refused, what an outage does."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from jwks_server import Issuer, new_key, public_jwk, running_issuer

from kvgrove_gateway.errors import Unauthorized, Unavailable
from kvgrove_gateway.identity.caller import JWT, Identity
from kvgrove_gateway.identity.files import BrokenFile
from kvgrove_gateway.identity.jwks import JwksFailure, JwksSource, fetch_jwks, next_fetch, parse_jwks
from kvgrove_gateway.identity.oidc_config import parse_oidc
from kvgrove_gateway.identity.tokens import TokenVerifier
from kvgrove_protocol.identity import Caller

NOW = 1_800_000_000
URL = "https://id.example/realms/a"


class Door:
    """A verifier with a clock that a test moves; its background fetching is played by `pass_time`."""

    def __init__(self, issuer: Issuer, **rule: Any) -> None:
        self.issuer = issuer
        self.clock = 0.0
        self.outcomes: list[str] = []
        whole = {
            "issuer": {"url": URL, "audiences": ["kvgrove", "other"]},
            "jwks": {"url": issuer.url, "refreshSeconds": 300, "retrySeconds": 10, "keepSeconds": 3600},
            "algorithms": ["RS256", "ES256", "EdDSA"],
            "claimMappings": {"tenant": {"claim": "org"}},
        }
        config = parse_oidc(json.dumps({"jwt": [whole | rule]}).encode())
        self.source = JwksSource(
            config.jwt[0].jwks, fetch=fetch_jwks, clock=lambda: self.clock, count=self.outcomes.append, name=URL
        )
        self.verifier = TokenVerifier(config, {URL: self.source}, now=lambda: NOW + self.clock)

    def claims(self, **more: Any) -> dict[str, Any]:
        return {"iss": URL, "aud": "kvgrove", "exp": NOW + 100_000, "sub": "ann", "org": "acme"} | more

    def token(self, kid: str = "a", **claims: Any) -> str:
        return self.issuer.sign(kid, self.claims(**claims))

    def opens(self, token: str) -> Identity:
        return asyncio.run(self.verifier.identify(token))

    def refuses(self, token: str) -> Unauthorized:
        with pytest.raises(Unauthorized) as caught:
            self.opens(token)
        return caught.value

    def pass_time(self, seconds: float) -> None:
        self.clock += seconds

    def fetch_if_due(self) -> None:
        """What the background task does when it wakes."""
        if next_fetch(self.source._state, self.source._source) <= self.clock:
            asyncio.run(self.source._fetch_now())


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with running_issuer() as running:
        running.make("a")
        running.publish("a")
        yield running


def test_a_token_gives_tenant_user_and_scopes(issuer: Issuer) -> None:
    identity = Door(issuer).opens(Door(issuer).token(scope="b a  b", user="bob", tenant="other"))
    assert identity.caller == Caller(tenant="acme", user="ann", scopes=("a", "b"))
    assert (identity.kind, identity.key_id) == (JWT, f"{URL}#ann")
    assert (identity.operator, identity.monitor, identity.explain, identity.namespaces) == (False, False, False, None)


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
def test_each_allowed_family_verifies(issuer: Issuer, algorithm: str) -> None:
    issuer.make("k", algorithm)
    issuer.publish("k")
    door = Door(issuer)
    assert door.opens(door.token("k")).caller.tenant == "acme"


def test_claims_are_mapped_as_the_file_says(issuer: Issuer) -> None:
    mappings = {
        "tenant": {"claim": ["resource", "org"], "allowed": ["acme", "globex"]},
        "user": {"claim": "email"},
        "scopes": {"claim": ["realm_access", "roles"]},
        "operators": {"claim": "groups", "anyOf": ["sre", "admin"]},
    }
    door = Door(issuer, claimMappings=mappings)
    nested = {"resource": {"org": "globex"}, "email": "a@x", "realm_access": {"roles": ["hr"]}, "groups": "sre"}
    identity = door.opens(door.token(**nested))
    assert identity.caller == Caller(tenant="globex", user="a@x", scopes=("hr",))
    assert (identity.operator, identity.monitor) == (True, True)
    assert not door.opens(door.token(**nested | {"groups": ["srex"]})).operator
    assert "may not speak" in door.refuses(door.token(**nested | {"resource": {"org": "victim"}})).message
    assert "resource.org" in door.refuses(door.token(**nested | {"resource": "acme"})).message
    fixed = Door(issuer, claimMappings={"tenant": {"value": "always"}})
    assert fixed.opens(fixed.token(org="other")).caller.tenant == "always"


def test_iso_10_without_a_tenant_nothing_and_without_a_user_no_user(issuer: Issuer) -> None:
    door = Door(issuer)
    for tenant in (None, ""):
        refused = door.refuses(door.token(org=tenant))
        assert (refused.code, "'org'" in refused.message) == ("invalid_token", True)
    assert door.opens(door.token(sub=None)).caller.user is None
    assert door.opens(door.token(sub="")).caller.user is None


@pytest.mark.parametrize(
    ("claims", "code", "says"),
    [
        ({"exp": NOW - 31}, "token_expired", "expired"),
        ({"exp": None}, "invalid_token", "exp"),
        ({"exp": "soon"}, "invalid_token", "numbers"),
        ({"exp": True}, "invalid_token", "numbers"),
        ({"nbf": NOW + 31}, "invalid_token", "clock"),
        ({"iat": NOW + 31}, "invalid_token", "clock"),
        ({"aud": "someone-else"}, "invalid_token", "audience"),
        ({"aud": None}, "invalid_token", "aud"),
        ({"iss": "https://id.example/realms/b"}, "invalid_token", "not accepted"),
        ({"iss": None}, "invalid_token", "not accepted"),
        ({"org": 5}, "invalid_token", "'org'"),
        ({"org": "x" * 257}, "invalid_token", "'org'"),
        ({"sub": {"a": 1}}, "invalid_token", "'sub'"),
        ({"scope": 7}, "invalid_token", "'scope'"),
        ({"scope": ["a", 7]}, "invalid_token", "'scope'"),
        ({"scope": [f"s{n}" for n in range(257)]}, "invalid_token", "'scope'"),
    ],
)
def test_what_is_refused_says_why_without_its_value(
    issuer: Issuer, claims: dict[str, Any], code: str, says: str
) -> None:
    door = Door(issuer)
    whole = {name: value for name, value in door.claims(**claims).items() if value is not None}
    refused = door.refuses(issuer.sign("a", whole))
    assert (refused.code, says in refused.message) == (code, True), refused.message
    assert "someone-else" not in refused.message


def test_clocks_may_differ_by_the_leeway(issuer: Issuer) -> None:
    door = Door(issuer)
    assert door.opens(door.token(exp=NOW - 29, iat=NOW - 60, nbf=NOW + 29)).caller.user == "ann"
    exact = Door(issuer, leewaySeconds=0)
    assert exact.opens(exact.token(exp=NOW + 1)).caller.user == "ann"
    assert exact.refuses(exact.token(exp=NOW)).code == "token_expired"


def test_tokens_can_be_too_old_whatever_they_say(issuer: Issuer) -> None:
    door = Door(issuer, maxAgeSeconds=100)
    assert door.opens(door.token(iat=NOW - 120)).caller.user == "ann"
    assert door.refuses(door.token(iat=NOW - 131)).code == "token_expired"
    assert "iat" in door.refuses(door.token()).message


def segment(value: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def test_no_algorithm_is_taken_that_is_not_on_the_list(issuer: Issuer) -> None:
    """``none``, a shared secret made of the public key, and an allowed name on another family's key."""
    door = Door(issuer)
    good = door.token()
    payload = good.split(".")[1]
    assert door.refuses(f"{segment({'alg': 'none', 'kid': 'a'})}.{payload}.").code == "invalid_token"
    public = json.dumps(public_jwk(issuer.keys["a"][0], "a")).encode()
    signed = f"{segment({'alg': 'HS256', 'kid': 'a'})}.{payload}"
    mac = base64.urlsafe_b64encode(hmac.digest(public, signed.encode(), "sha256")).rstrip(b"=").decode()
    assert door.refuses(f"{signed}.{mac}").code == "invalid_token"
    issuer.make("p", "PS256")
    issuer.publish("a", "p")
    assert door.refuses(door.token("p")).code == "invalid_token"  # PS256 is not on this rule's list
    crossed = f"{segment({'alg': 'RS256', 'kid': 'a'})}.{payload}.{good.split('.')[2]}"
    assert door.refuses(crossed).code == "invalid_token"


def test_a_key_that_its_issuer_made_for_another_algorithm_verifies_nothing(issuer: Issuer) -> None:
    issuer.make("r", "RS256")
    issuer.body = json.dumps({"keys": [public_jwk(issuer.keys["r"][0], "r", alg="PS256")]}).encode()
    door = Door(issuer)
    assert door.refuses(door.token("r")).code == "invalid_token"


@pytest.mark.parametrize("change", ["payload", "signature", "parts", "long", "junk"])
def test_a_token_that_was_tampered_with_is_refused(issuer: Issuer, change: str) -> None:
    door = Door(issuer)
    header, payload, signature = door.token().split(".")
    bad = {
        "payload": f"{header}.{segment(door.claims(org='victim'))}.{signature}",
        "signature": f"{header}.{payload}.{signature[::-1]}",
        "parts": f"{header}.{payload}",
        "long": f"{header}.{payload}{'A' * 9000}.{signature}",
        "junk": "é.ü.[",
    }[change]
    refused = door.refuses(bad)
    assert (refused.code, refused.status) == ("invalid_token", 401)


def test_a_new_key_is_fetched_when_a_token_names_it_and_a_withdrawn_one_goes(issuer: Issuer) -> None:
    door = Door(issuer)
    old = door.token("a")
    door.opens(old)
    issuer.make("b")
    issuer.publish("b")
    door.pass_time(11)
    assert door.opens(door.token("b")).caller.user == "ann"
    assert door.refuses(old).code == "invalid_token"
    assert issuer.fetches == 2


def test_tokens_with_unknown_keys_cost_a_bounded_number_of_fetches(issuer: Issuer) -> None:
    door = Door(issuer)
    issuer.make("ghost")
    for _ in range(50):
        door.refuses(door.token("ghost"))
        door.pass_time(0.9)
    assert issuer.fetches <= 50 * 0.9 / 10 + 1
    assert door.opens(door.token("a")).caller.user == "ann"


def test_in_an_outage_the_last_good_keys_count_until_their_bound(issuer: Issuer) -> None:
    door = Door(issuer)
    token = door.token()
    door.opens(token)
    issuer.status = 500
    for _ in range(11):
        door.pass_time(300)
        door.fetch_if_due()
        assert door.opens(token).caller.user == "ann"
    assert door.outcomes == ["ok"] + ["failed"] * 11
    door.pass_time(301)
    with pytest.raises(Unavailable) as caught:
        door.opens(token)
    assert (caught.value.status, caught.value.code) == (503, "keys_unavailable")
    assert caught.value.headers()["Retry-After"]
    issuer.status = 200
    door.pass_time(11)
    assert door.opens(token).caller.user == "ann"  # the first token after the outage brings them back


def test_a_gateway_that_begins_in_an_outage_says_that_it_cannot_tell(issuer: Issuer) -> None:
    issuer.status = 503
    door = Door(issuer)
    for _ in range(5):
        with pytest.raises(Unavailable):
            door.opens(door.token())
    assert issuer.fetches == 1


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (302, b""),
        (404, b"{}"),
        (200, b""),
        (200, b"[]"),
        (200, b'{"keys": {}}'),
        (200, b'{"keys": []}'),
        (200, b'{"keys": [{"kty": "oct", "k": "AAAA", "kid": "a"}]}'),
        (200, b'{"keys": [{"kty": "RSA", "kid": "a"}, 5, "x"]}'),
        (200, b"[" * 100_000),
        (200, b'{"keys": [' + b"{}," * 300 + b"{}]}"),
        (200, b"x" * ((1 << 20) + 2)),
    ],
)
def test_what_is_no_key_set_changes_nothing(issuer: Issuer, status: int, body: bytes) -> None:
    door = Door(issuer)
    token = door.token()
    door.opens(token)
    issuer.status, issuer.body = status, body
    door.pass_time(300)
    door.fetch_if_due()
    assert door.outcomes == ["ok", "failed"]
    assert door.opens(token).caller.user == "ann"


def test_a_token_without_a_key_id_needs_an_issuer_with_one_key(issuer: Issuer) -> None:
    door = Door(issuer)
    bare = jwt.encode(door.claims(), issuer.keys["a"][0], algorithm="ES256")
    assert door.opens(bare).caller.user == "ann"
    issuer.make("b")
    issuer.publish("a", "b")
    door.pass_time(300)
    door.fetch_if_due()
    assert door.refuses(bare).code == "invalid_token"


def test_keys_may_come_from_a_file(tmp_path: Path, issuer: Issuer) -> None:
    file = tmp_path / "jwks.json"
    file.write_bytes(issuer.body)
    door = Door(issuer, jwks={"file": str(file)})
    assert door.opens(door.token()).caller.user == "ann"
    assert issuer.fetches == 0
    file.unlink()
    door.pass_time(300)
    door.fetch_if_due()
    assert door.opens(door.token()).caller.user == "ann"


def test_keys_for_encryption_are_left_out() -> None:
    key = new_key("RS256")
    body = json.dumps({"keys": [public_jwk(key, "e", use="enc"), public_jwk(key, "s", use="sig")]}).encode()
    assert list(parse_jwks(body)) == ["s"]
    with pytest.raises(JwksFailure, match="usable"):
        parse_jwks(json.dumps({"keys": [public_jwk(key, "e", use="enc")]}).encode())


RULE: dict[str, Any] = {
    "issuer": {"url": URL, "audiences": ["a"]},
    "jwks": {"url": "https://id.example/jwks"},
    "claimMappings": {"tenant": {"value": "t"}},
}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"issuer": {"url": URL, "audiences": []}}, "jwt.0.issuer.audiences"),
        ({"issuer": {"url": URL}}, "jwt.0.issuer.audiences"),
        ({"algorithms": ["none"]}, "jwt.0.algorithms.0"),
        ({"algorithms": ["HS256"]}, "jwt.0.algorithms.0"),
        ({"algorithms": []}, "jwt.0.algorithms"),
        ({"jwks": {}}, "exactly one of url and file"),
        ({"jwks": {"url": "https://x/", "file": "y"}}, "exactly one of url and file"),
        ({"jwks": {"url": "http://id.example/jwks"}}, "must be https://"),
        ({"jwks": {"url": "file:///etc/passwd"}}, "must be https://"),
        ({"jwks": {"url": "https://x/", "retrySeconds": 400}}, "retrySeconds <= refreshSeconds"),
        ({"claimMappings": {"tenant": {}}}, "exactly one of value and claim"),
        ({"claimMappings": {"tenant": {"value": "t", "allowed": ["t"]}}}, "leave it out"),
        ({"claimMappings": {"tenant": {"value": "t"}, "usr": {"claim": "sub"}}}, "jwt.0.claimMappings.usr"),
        ({"claimMappings": {}}, "jwt.0.claimMappings.tenant"),
        ({"leewaySeconds": 301}, "jwt.0.leewaySeconds"),
        ({"leeway": 30}, "jwt.0.leeway"),
    ],
)
def test_the_configuration_is_closed_and_names_field_and_cure(change: dict[str, Any], says: str) -> None:
    with pytest.raises(BrokenFile) as caught:
        parse_oidc(json.dumps({"jwt": [RULE | change]}).encode())
    assert says in caught.value.message
    assert "etc/passwd" not in caught.value.message


def test_an_issuer_occurs_once() -> None:
    with pytest.raises(BrokenFile, match="an issuer occurs twice"):
        parse_oidc(json.dumps({"jwt": [RULE, RULE]}).encode())
