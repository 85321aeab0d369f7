"""Allowances of tenants: requests and prompt tokens per minute, and requests at once (``--rate-limits FILE``).

Token buckets that hold one minute's allowance: a tenant may use it in one burst and gets it back evenly. A request is
judged before its body is read; its prompt tokens are charged when they have been counted, before they reach a node.
Each gateway counts for itself: behind a balancer over n gateways a tenant gets n times the allowance.

Bounded (I11): a bucket that is full again is dropped, which loses nothing. Where even so there are too many, the one
that was used longest ago is dropped and counted; its tenant gains at most one allowance by that.
"""

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict, Field

from kvgrove_gateway.errors import BadRequest, Busy
from kvgrove_gateway.identity.caller import Identity
from kvgrove_gateway.identity.files import parse_closed
from kvgrove_gateway.identity.key_file import Name
from kvgrove_gateway.protection.figures import ProtectionFigures

MINUTE_S = 60.0
MAX_BUCKETS = 65_536
MAX_ALLOWANCE = 10**12
CONCURRENT_RETRY_S = 1


class Allowance(BaseModel):
    """Absent: unlimited."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    requests_per_minute: int | None = Field(None, ge=1, le=MAX_ALLOWANCE)
    prompt_tokens_per_minute: int | None = Field(None, ge=1, le=MAX_ALLOWANCE)
    concurrent_requests: int | None = Field(None, ge=1, le=MAX_ALLOWANCE)


class RateLimits(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    default: Allowance = Allowance()
    """Of each tenant that is not named, for itself."""
    tenants: dict[Name, Allowance] = Field(default_factory=dict, max_length=100_000)

    def of(self, tenant: str) -> Allowance:
        return self.tenants.get(tenant, self.default)


def parse_rate_limits(text: bytes) -> RateLimits:
    """Raises BrokenFile naming the field."""
    return parse_closed(text, RateLimits)


@dataclass
class TokenBucket:
    """``capacity`` units, refilled evenly over a minute. Times are a monotonic clock's seconds."""

    capacity: float
    level: float
    at: float

    def settle(self, capacity: float, now: float) -> None:
        """Bring the level up to ``now``, by an allowance that may have changed."""
        self.level = min(capacity, self.level + capacity / MINUTE_S * max(now - self.at, 0.0))
        self.capacity, self.at = capacity, now

    def take(self, amount: float) -> float:
        """0 if ``amount`` was taken, else the seconds until it could be; nothing is taken then."""
        if self.level >= amount:
            self.level -= amount
            return 0.0
        return (amount - self.level) * MINUTE_S / self.capacity

    @property
    def full(self) -> bool:
        return self.level >= self.capacity


@dataclass
class _Account:
    buckets: dict[str, TokenBucket] = field(default_factory=dict)
    under_way: int = 0

    def idle(self, now: float) -> bool:
        for bucket in self.buckets.values():
            bucket.settle(bucket.capacity, now)
        return not self.under_way and all(bucket.full for bucket in self.buckets.values())


class TenantRates:
    """What each tenant has used. On the event loop only."""

    def __init__(
        self,
        limits: Callable[[], RateLimits],
        *,
        clock: Callable[[], float],
        figures: ProtectionFigures,
        max_buckets: int = MAX_BUCKETS,
    ) -> None:
        """``limits``: those in force now; they may change at any time."""
        self._limits = limits
        self._clock = clock
        self._figures = figures
        self._max = max_buckets
        self._accounts: OrderedDict[str, _Account] = OrderedDict()

    def __len__(self) -> int:
        return len(self._accounts)

    def begin(self, tenant: str) -> None:
        """A request comes; `end` must follow unless this raises Busy."""
        allowance = self._limits().of(tenant)
        account = self._account(tenant)
        most = allowance.concurrent_requests
        if most is not None and account.under_way >= most:
            self._figures.rate_limited.labels("concurrent").inc()
            raise _busy(f"{most} requests of this tenant are under way", CONCURRENT_RETRY_S)
        wait = self._take(account, "requests", allowance.requests_per_minute, 1)
        if wait:
            raise _busy(f"Over {allowance.requests_per_minute} requests per minute of this tenant", wait)
        account.under_way += 1

    def end(self, tenant: str) -> None:
        self._account(tenant).under_way -= 1

    def charge(self, identity: Identity, prompt_tokens: int, field: str) -> None:
        """A prompt, which ``field`` holds, was counted. Raises Busy, or BadRequest for one that no wait makes fit."""
        tenant = identity.caller.tenant or ""
        most = self._limits().of(tenant).prompt_tokens_per_minute
        if most is not None and prompt_tokens > most:
            self._figures.rate_limited.labels("prompt_tokens").inc()
            raise BadRequest(
                f"The prompt has {prompt_tokens} tokens and this tenant may use {most} in a minute: shorten it.",
                field=field,
                code="prompt_above_rate_limit",
            )
        wait = self._take(self._account(tenant), "prompt_tokens", most, prompt_tokens)
        if wait:
            raise _busy(f"Over {most} prompt tokens per minute of this tenant", wait)

    def _take(self, account: _Account, limit: str, capacity: int | None, amount: int) -> int:
        """Whole seconds to wait; 0: taken."""
        if capacity is None:
            account.buckets.pop(limit, None)
            return 0
        now = self._clock()
        bucket = account.buckets.setdefault(limit, TokenBucket(capacity, capacity, now))
        bucket.settle(capacity, now)
        wait = bucket.take(amount)
        if wait:
            self._figures.rate_limited.labels(limit).inc()
        return math.ceil(wait)

    def _account(self, tenant: str) -> _Account:
        account = self._accounts.get(tenant)
        if account is None:
            self._make_room()
            account = self._accounts[tenant] = _Account()
        self._accounts.move_to_end(tenant)
        self._figures.rate_buckets.set(len(self._accounts))
        return account

    def _make_room(self) -> None:
        """Drop what is full again from the far end, boundedly; and if need be what is not, though never one in use."""
        now = self._clock()
        for _ in range(2):  # two out for one in: what has gone quiet does not stay for ever
            oldest = next(iter(self._accounts), None)
            if oldest is None or not self._accounts[oldest].idle(now):
                break
            del self._accounts[oldest]
        if len(self._accounts) >= self._max:
            victim = next((name for name, account in self._accounts.items() if not account.under_way), None)
            if victim is not None:
                del self._accounts[victim]
                self._figures.rate_buckets_dropped.inc()


def _busy(what: str, retry_after_s: int) -> Busy:
    error = Busy(f"{what}: try again in {retry_after_s} s.", code="rate_limit_exceeded")
    error.retry_after_s = retry_after_s
    return error
