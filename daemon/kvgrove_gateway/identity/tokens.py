"""OIDC tokens -> identities, through PyJWT.

The issuer is looked up by the token's own, unverified ``iss``: it only chooses the rule that then verifies all of it.
Before the signature has been verified, a caller is told nothing but that the token is not accepted.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jwt

from kvgrove_gateway.errors import Unauthorized
from kvgrove_gateway.identity.caller import JWT, MAX_NAME_CHARS, MAX_SCOPES, Identity
from kvgrove_gateway.identity.jwks import IssuerKey, JwksSource
from kvgrove_gateway.identity.oidc_config import OidcConfig, TenantClaim, TokenRule, look_up, path_of
from kvgrove_protocol.identity import Caller

MAX_TOKEN_CHARS = 8192

_FAMILIES = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}


def looks_like_a_token(credential: str) -> bool:
    """Three parts, as a signed JWT has them; API keys made here have no dot."""
    return credential.count(".") == 2


class TokenVerifier:
    """Verifies tokens of the configured issuers. On the event loop only."""

    def __init__(self, config: OidcConfig, sources: Mapping[str, JwksSource], *, now: Callable[[], float]) -> None:
        """``sources``: by issuer URL. ``now``: seconds since 1970."""
        self._rules = {rule.issuer.url: rule for rule in config.jwt}
        self._sources = sources
        self._now = now

    async def identify(self, token: str) -> Identity:
        """Raises Unauthorized, or Unavailable where the issuer's keys cannot be had."""
        if len(token) > MAX_TOKEN_CHARS:
            raise Unauthorized("The token is too long.", code="invalid_token")
        try:
            header = jwt.get_unverified_header(token)
            claimed = jwt.decode(token, options={"verify_signature": False}).get("iss")
        except (jwt.PyJWTError, ValueError, RecursionError):
            raise _refused() from None
        rule = self._rules.get(claimed) if isinstance(claimed, str) else None
        if rule is None or header.get("alg") not in rule.algorithms:
            raise _refused()
        kid = header.get("kid")
        key = await self._sources[rule.issuer.url].key(kid if isinstance(kid, str) else None)
        if key is None or not _fits(key, header["alg"]):
            raise _refused()
        return identity_of(rule, self._verified(token, rule, key, header["alg"]))

    def _verified(self, token: str, rule: TokenRule, key: IssuerKey, algorithm: str) -> dict[str, Any]:
        required = ["exp", "iss", "aud"] + (["iat"] if rule.max_age_seconds is not None else [])
        try:
            claims = jwt.decode(
                token,
                key.public,
                algorithms=[algorithm],
                audience=rule.issuer.audiences,
                issuer=rule.issuer.url,
                # PyJWT reads the system's clock; ours is injected, so times are judged below.
                options={
                    "require": required,
                    "enforce_minimum_key_length": True,
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                    "verify_sub": False,
                    "verify_jti": False,
                },
            )
        except jwt.InvalidAudienceError:
            raise Unauthorized("The token is for another audience.", code="invalid_token") from None
        except jwt.MissingRequiredClaimError as error:
            raise Unauthorized(f"The token lacks the claim '{error.claim}'.", code="invalid_token") from None
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
            raise _refused() from None
        self._check_times(claims, rule)
        return claims

    def _check_times(self, claims: Mapping[str, Any], rule: TokenRule) -> None:
        now, leeway = self._now(), rule.leeway_seconds
        times = {name: claims[name] for name in ("exp", "nbf", "iat") if name in claims}
        if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in times.values()):
            raise Unauthorized("The token's times are no numbers.", code="invalid_token")
        if now >= times["exp"] + leeway:
            raise Unauthorized("The token has expired: get a new one.", code="token_expired")
        if any(now < times[name] - leeway for name in ("nbf", "iat") if name in times):
            raise Unauthorized("The token is not valid yet: check the issuer's clock.", code="invalid_token")
        if rule.max_age_seconds is not None and now >= times["iat"] + rule.max_age_seconds + leeway:
            raise Unauthorized("The token is too old: get a new one.", code="token_expired")


def identity_of(rule: TokenRule, claims: Mapping[str, Any]) -> Identity:
    """Who verified ``claims`` speak for; raises Unauthorized naming the claim that is missing or unusable."""
    mapping = rule.claim_mappings
    user = _name(look_up(claims, mapping.user.path), mapping.user.path)
    scopes = _names(look_up(claims, mapping.scopes.path), mapping.scopes.path)
    operators = mapping.operators
    operator = operators is not None and not set(operators.any_of).isdisjoint(
        _names(look_up(claims, operators.path), operators.path)
    )
    return Identity(
        key_id=f"{rule.issuer.url}#{user or ''}",
        caller=Caller(tenant=_tenant(mapping.tenant, claims), user=user, scopes=tuple(sorted(set(scopes)))),
        namespaces=None,
        explain=operator,
        operator=operator,
        monitor=operator,
        kind=JWT,
    )


def _tenant(mapping: TenantClaim, claims: Mapping[str, Any]) -> str:
    if mapping.claim is None:
        return mapping.value or ""
    path = path_of(mapping.claim)
    tenant = _name(look_up(claims, path), path)
    if tenant is None:
        raise Unauthorized(f"The token lacks the claim '{'.'.join(path)}', the tenant.", code="invalid_token")
    if mapping.allowed is not None and tenant not in mapping.allowed:
        raise Unauthorized("The token's issuer may not speak for its tenant.", code="invalid_token")
    return tenant


def _fits(key: IssuerKey, algorithm: str) -> bool:
    """Whether the issuer made the key for the algorithm that the token names."""
    return key.family == _FAMILIES[algorithm[:2]] and key.algorithm in (None, algorithm)


def _name(value: Any, path: list[str]) -> str | None:
    if value is None or value == "":
        return None
    if not isinstance(value, str) or len(value) > MAX_NAME_CHARS:
        raise Unauthorized(f"The token's claim '{'.'.join(path)}' is no usable name.", code="invalid_token")
    return value


def _names(value: Any, path: list[str]) -> list[str]:
    listed = value.split() if isinstance(value, str) else [] if value is None else value
    if not isinstance(listed, list) or len(listed) > MAX_SCOPES:
        raise Unauthorized(f"The token's claim '{'.'.join(path)}' is no usable list.", code="invalid_token")
    return [name for each in listed if (name := _name(each, path)) is not None]


def _refused() -> Unauthorized:
    return Unauthorized("The token is not accepted.", code="invalid_token")
