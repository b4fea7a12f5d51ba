import hashlib
import itertools

import pytest

from specray.control.reports import WINDOW_S
from specray.serve.tenants import TenantCounter, tenant_of

KEY = "sk-very-secret"
HASHED = hashlib.sha256(KEY.encode()).hexdigest()[:12]


@pytest.mark.parametrize(
    ("header", "value", "tenant"),
    [
        ("authorization", f"Bearer {KEY}", HASHED),
        ("authorization", f"bearer  {KEY} ", HASHED),
        ("Authorization", KEY, HASHED),
        ("x-api-key", KEY, HASHED),
        ("x-auth-token", KEY, HASHED),
        ("proxy-authorization", f"Bearer {KEY}", HASHED),
        ("x-team", "search", "search"),
        ("x-team", " ", ""),
    ],
)
def test_a_header_names_the_tenant_and_no_secret_goes_on(
    header: str, value: str, tenant: str
) -> None:
    assert tenant_of({header: value}, header) == tenant


def test_names_that_cannot_be_shown_are_told_apart_and_short() -> None:
    names = ["a\u009b31m", "a31m", "\u00fc-corp", "\u00f6-corp", "b" * 129, "b" * 128, "b" * 60_000]
    tenants = [tenant_of({"x-team": name}, "x-team") for name in names]
    assert len(set(tenants)) == len(names)
    assert all(tenant.isascii() and len(tenant) <= 128 for tenant in tenants)
    assert tenants[1] == "a31m"


def test_who_says_nothing_is_nobody() -> None:
    assert tenant_of({}, "authorization") == ""


def test_requests_are_counted_by_tenant() -> None:
    times = iter([0.0, 10.0])
    counter = TenantCounter(lambda: next(times))
    counter.report()
    for tenant in ["a"] * 30 + ["b"] * 10:
        counter.count(tenant)
    report = counter.report()

    assert report.requests_per_s == 4.0
    assert report.tenants == (("a", 3.0), ("b", 1.0))


def test_who_no_longer_asks_makes_room_for_others() -> None:
    times = itertools.count(0.0, WINDOW_S)
    counter = TenantCounter(lambda: next(times))
    for i in range(1024):
        counter.count(f"tenant {i}")
    for _ in range(3):
        counter.report()

    for tenant in ["new", "tenant 7"]:
        counter.count(tenant)
    assert dict(counter.report().tenants) == {"new": 1 / WINDOW_S, "tenant 7": 1 / WINDOW_S}


def test_memory_and_reports_are_bounded() -> None:
    times = iter([0.0, 1.0])
    counter = TenantCounter(lambda: next(times))
    counter.report()
    for i in range(5000):
        counter.count(f"tenant {i}")
    report = counter.report()

    assert report.requests_per_s == 5000.0
    assert len(report.tenants) == 8
    assert report.tenants[0] == ("(others)", 5000.0 - 1024)
