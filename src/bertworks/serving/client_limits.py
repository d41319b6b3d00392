"""Limits of a client: its connections and requests in, a RequestError out for those above the limit."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from bertworks.errors import SettingsError
from bertworks.serving.errors import RequestError

_PURGE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Limits of one client: open connections of its address, and requests per minute of its key or address."""

    connections: int = 512
    requests_per_minute: int | None = None

    def __post_init__(self) -> None:
        if self.connections < 1 or (self.requests_per_minute is not None and self.requests_per_minute < 1):
            raise SettingsError("the limits of a client must be at least 1; leave --rate-limit out for no limit")


class RateLimit:
    """A token bucket for each client: it holds a minute's requests and fills evenly.

    A bucket is stored as the time at which it will be full again; a request moves it by the time that a token takes.
    """

    def __init__(self, requests_per_minute: int) -> None:
        self._requests_per_minute = requests_per_minute
        self._token_seconds = 60.0 / requests_per_minute
        self._full_times: dict[bytes | str, float] = {}
        self._purge_time = 0.0

    def check(self, client: bytes | str) -> None:
        """Take a token of a client; raise a RequestError if it has none."""
        now = time.monotonic()
        if now > self._purge_time:
            self._full_times = {name: full for name, full in self._full_times.items() if full > now}
            self._purge_time = now + _PURGE_SECONDS
        full_time = max(now, self._full_times.get(client, now)) + self._token_seconds
        # The sum of many tokens is rounded; a thousandth of a token is not a request.
        excess_seconds = full_time - now - 60.0 - self._token_seconds / 1000
        if excess_seconds > 0:
            seconds = math.ceil(excess_seconds)
            message = (
                f"more than {self._requests_per_minute:,} requests per minute; retry in {seconds} "
                f"{'second' if seconds == 1 else 'seconds'}"
            )
            raise RequestError(429, message, {"Retry-After": str(seconds)}, "rate_limited")
        self._full_times[client] = full_time
