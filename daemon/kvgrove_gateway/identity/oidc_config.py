"""Which issuers' tokens are taken, and which claims say who the caller is (``--oidc FILE``).

Shaped like Kubernetes' structured authentication configuration. Closed: an unknown field is refused, since a misspelt
rule would otherwise be no rule. Algorithms are asymmetric ones by name; ``none`` and shared secrets cannot be written.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from kvgrove_gateway.identity.caller import MAX_NAME_CHARS
from kvgrove_gateway.identity.files import BrokenFile, parse_closed

Algorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]  # fmt: skip
Name: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME_CHARS)]
Text: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=2048)]
ClaimName: TypeAlias = Text | Annotated[list[Text], Field(min_length=1, max_length=8)]
"""A name, or the path to a nested claim."""

_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, alias_generator=to_camel)


class Issuer(_Closed):
    url: Text
    """Equal to the tokens' ``iss``, character for character."""
    audiences: list[Text] = Field(min_length=1, max_length=16)
    """A token must be for one of them (``aud``)."""


class KeysSource(_Closed):
    """Where the issuer's public keys (JWKS) are: exactly one of ``url`` and ``file``."""

    url: Text | None = None
    file: Text | None = None
    refresh_seconds: float = Field(300.0, ge=1, le=86_400)
    """Fetched again this often."""
    retry_seconds: float = Field(10.0, ge=0.1, le=3600)
    """Two fetches are at least this far apart, whoever asks: tokens that name unknown keys cost no more than that."""
    keep_seconds: float = Field(86_400.0, ge=1, le=2_592_000)
    """How long the last good keys count while the source cannot be reached."""
    timeout_seconds: float = Field(5.0, ge=0.1, le=60)

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.url is None) == (self.file is None):
            raise PydanticCustomError("one_source", "set exactly one of url and file")
        if self.url is not None:
            parts = urlsplit(self.url)
            if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOOPBACK):
                raise PydanticCustomError("plain_http", "url must be https:// (http:// only to this machine)")
        if self.retry_seconds > self.refresh_seconds or self.refresh_seconds > self.keep_seconds:
            raise PydanticCustomError("order", "retrySeconds <= refreshSeconds <= keepSeconds is needed")
        return self


class Claim(_Closed):
    """A claim by name, or by the path to it: ``[realm_access, roles]``."""

    claim: ClaimName

    @property
    def path(self) -> list[str]:
        return path_of(self.claim)


class TenantClaim(_Closed):
    """One fixed tenant for all of the issuer's tokens, or a claim that names it."""

    value: Name | None = None
    claim: ClaimName | None = None
    allowed: list[Name] | None = Field(None, max_length=10_000)
    """Tenants that the issuer may speak for; absent: any."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.value is None) == (self.claim is None):
            raise PydanticCustomError("one_source", "set exactly one of value and claim")
        if self.value is not None and self.allowed is not None:
            raise PydanticCustomError("allowed", "allowed limits a claim: with value leave it out")
        return self


class MembershipClaim(Claim):
    """True where the claim, a list or one string, holds one of ``anyOf``."""

    any_of: list[Name] = Field(min_length=1, max_length=64)


class ClaimMappings(_Closed):
    tenant: TenantClaim
    user: Claim = Claim(claim="sub")
    """A string. A token without it has no user: isolation by user then shares nothing with anybody."""
    scopes: Claim = Claim(claim="scope")
    """A list of strings, or one string of names set apart by spaces."""
    operators: MembershipClaim | None = None
    """Who may use ``/admin`` and read ``/metrics``; absent: nobody of this issuer."""


class TokenRule(_Closed):
    """One issuer."""

    issuer: Issuer
    jwks: KeysSource
    algorithms: list[Algorithm] = Field(default_factory=lambda: ["RS256", "ES256"], min_length=1, max_length=10)  # type: ignore[arg-type]
    leeway_seconds: float = Field(30.0, ge=0, le=300)
    """How far the issuer's clock and ours may be apart."""
    max_age_seconds: float | None = Field(None, ge=1)
    """Refuse tokens that were issued longer ago (``iat`` is required then), whatever their ``exp``."""
    claim_mappings: ClaimMappings


class OidcConfig(_Closed):
    jwt: list[TokenRule] = Field(min_length=1, max_length=32)

    @field_validator("jwt")
    @classmethod
    def _each_issuer_once(cls, rules: list[TokenRule]) -> list[TokenRule]:
        if len({rule.issuer.url for rule in rules}) < len(rules):
            raise PydanticCustomError("twice", "an issuer occurs twice")
        return rules


def path_of(claim: str | list[str]) -> list[str]:
    return [claim] if isinstance(claim, str) else claim


def look_up(claims: Mapping[str, Any], path: list[str]) -> Any:
    """The claim at ``path``; None where it is not there."""
    found: Any = claims
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def parse_oidc(text: bytes) -> OidcConfig:
    """Raises BrokenFile naming the field and the cure."""
    return parse_closed(text, OidcConfig)


def read_oidc(path: Path, content: bytes) -> OidcConfig:
    """`parse_oidc`, with the file's name in the error."""
    try:
        return parse_oidc(content)
    except BrokenFile as error:
        raise BrokenFile(f"{path}: {error.message}", field=error.field) from None
