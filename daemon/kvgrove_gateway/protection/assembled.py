"""Credentials, allowances, audit log and connection bounds of one gateway, put together from its settings."""

import asyncio
import os
from collections.abc import Callable

from fastapi import Response
from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp

from kvgrove_gateway.errors import ApiError
from kvgrove_gateway.identity.authenticator import Authenticator
from kvgrove_gateway.identity.caller import Identity
from kvgrove_gateway.identity.files import WatchedFile, read_bounded
from kvgrove_gateway.identity.jwks import JwksSource, fetch_jwks
from kvgrove_gateway.identity.key_ring import KeyRing
from kvgrove_gateway.identity.oidc_config import OidcConfig, read_oidc
from kvgrove_gateway.identity.tokens import TokenVerifier
from kvgrove_gateway.protection.audit import Audit, AuditLog, NoAudit
from kvgrove_gateway.protection.connections import BoundedConnection, ConnectionBounds, bounded
from kvgrove_gateway.protection.figures import ProtectionFigures
from kvgrove_gateway.protection.gate import Gate
from kvgrove_gateway.protection.rates import RateLimits, TenantRates, parse_rate_limits
from kvgrove_gateway.settings import Settings

REFRESH_S = 1.0


class Protection:
    """Everything before the API. `keep_current` runs as long as the gateway does."""

    def __init__(
        self,
        settings: Settings,
        *,
        registry: CollectorRegistry,
        key_file_failed: Callable[[], None],
        denied: Callable[[str], None],
        clock: Callable[[], float],
        now: Callable[[], float],
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        """Raises BrokenFile or Unwritable. ``clock``: monotonic seconds; ``now``: seconds since 1970."""
        self._settings = settings
        self._clock = clock
        self._denied = denied
        self._figures = ProtectionFigures(registry)
        self._keys = KeyRing(settings.keys, on_failure=key_file_failed, now=now, random_bytes=random_bytes)
        config, self._sources = _issuers(settings, clock=clock, figures=self._figures)
        tokens = None if config is None else TokenVerifier(config, self._sources, now=now)
        self._authenticator = Authenticator(self._keys, tokens)
        self._limits_file = _limits_file(settings, self._figures)
        self.rates = TenantRates(self._limits, clock=clock, figures=self._figures)
        self.audit: Audit = NoAudit()
        self._log: AuditLog | None = None
        if settings.audit_log is not None:
            self._log = AuditLog(settings.audit_log, member=settings.member, now=now, figures=self._figures)
            self.audit = self._log

    def around(
        self,
        app: ASGIApp,
        *,
        draining: Callable[[], bool],
        namespace_of: Callable[[Identity, str], str | None],
        refuse: Callable[[str, ApiError], Response],
    ) -> Gate:
        """``app`` behind the gate (see `Gate` for the arguments)."""
        return Gate(
            app,
            authenticator=self._authenticator,
            rates=self.rates,
            audit=self.audit,
            draining=draining,
            denied=self._denied,
            namespace_of=namespace_of,
            refuse=refuse,
        )

    def connections(self) -> type[BoundedConnection]:
        """The protocol class for the HTTP server."""
        limits = self._settings.limits
        bounds = ConnectionBounds(limits.connections, limits.head_s, limits.reader_s)
        return bounded(bounds, lambda reason: self._figures.connections_cut.labels(reason).inc())

    async def keep_current(self) -> None:
        """Take changed files over, and fetch issuers' keys when it is time; ends by cancellation only."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._look_at_files())
            for source in self._sources.values():
                group.create_task(source.keep_fresh())

    def reload(self) -> None:
        """Open the audit log anew; the files are read again at the next look, within a second."""
        if self._log is not None:
            self._log.reopen()

    def refresh_figures(self) -> None:
        """Set what is only looked up on a scrape."""
        if self._sources:
            ages = [source.age_s for source in self._sources.values()]
            self._figures.jwks_age.set(-1 if None in ages else max(age for age in ages if age is not None))

    def close(self) -> None:
        """Write what the audit log still has to write."""
        if self._log is not None:
            self._log.close()

    def _limits(self) -> RateLimits:
        return _UNLIMITED if self._limits_file is None else self._limits_file.value

    async def _look_at_files(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            await self._keys.refresh()
            if self._limits_file is not None:
                await asyncio.to_thread(self._limits_file.refresh)


_UNLIMITED = RateLimits()


def _limits_file(settings: Settings, figures: ProtectionFigures) -> WatchedFile[RateLimits] | None:
    if settings.rate_limits is None:
        return None
    failed = figures.file_failures.labels("rate_limits")
    return WatchedFile(settings.rate_limits, parse_rate_limits, what="rate limits", on_failure=failed.inc)


def _issuers(
    settings: Settings, *, clock: Callable[[], float], figures: ProtectionFigures
) -> tuple[OidcConfig | None, dict[str, JwksSource]]:
    if settings.oidc is None:
        return None, {}
    config = read_oidc(settings.oidc, read_bounded(settings.oidc))
    sources = {
        rule.issuer.url: JwksSource(
            rule.jwks,
            fetch=fetch_jwks,
            clock=clock,
            count=lambda outcome: figures.jwks_fetches.labels(outcome).inc(),
            name=rule.issuer.url,
        )
        for rule in config.jwt
    }
    return config, sources
