"""Limits of a client: the token bucket, with a clock moved by hand, and settings that are refused."""

from __future__ import annotations

import pytest

from bertworks.errors import SettingsError
from bertworks.serving import client_limits
from bertworks.serving.client_limits import ClientLimits, RateLimit
from bertworks.serving.errors import RequestError


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(client_limits, "time", clock)
    return clock


def num_accepted(limit: RateLimit, num_requests: int, client: str = "a") -> int:
    count = 0
    for _ in range(num_requests):
        try:
            limit.check(client)
        except RequestError:
            continue
        count += 1
    return count


def test_a_bucket_holds_a_minute_and_fills_evenly(clock):
    limit = RateLimit(600)
    assert num_accepted(limit, 1_000) == 600
    clock.now += 0.1  # one token
    assert num_accepted(limit, 10) == 1
    clock.now += 1.0
    assert num_accepted(limit, 100) == 10
    clock.now += 3_600.0
    assert num_accepted(limit, 1_000) == 600


def test_the_error_says_when_to_retry(clock):
    limit = RateLimit(6)
    assert num_accepted(limit, 6) == 6
    with pytest.raises(RequestError, match="more than 6 requests per minute; retry in 10 seconds") as error:
        limit.check("a")
    assert (error.value.status, error.value.type) == (429, "rate_limited")
    assert error.value.headers == {"Retry-After": "10"}
    clock.now += 9.5
    with pytest.raises(RequestError, match=r"retry in 1 second$"):
        limit.check("a")
    clock.now += 0.5
    limit.check("a")


def test_each_client_has_its_own_bucket(clock):
    limit = RateLimit(3)
    assert num_accepted(limit, 5, "a") == 3
    assert num_accepted(limit, 5, "b") == 3


def test_clients_that_have_not_come_for_a_minute_are_forgotten(clock):
    limit = RateLimit(10)
    for number in range(1_000):
        limit.check(f"client {number}")
    clock.now += 61.0
    limit.check("another")
    assert list(limit._full_times) == ["another"]


@pytest.mark.parametrize("settings", [{"connections": 0}, {"requests_per_minute": 0}, {"requests_per_minute": -1}])
def test_limits_must_be_at_least_one(settings):
    with pytest.raises(SettingsError, match="at least 1"):
        ClientLimits(**settings)
