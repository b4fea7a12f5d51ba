"""Whom a request is for, and how many come for whom."""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from specray.control.reports import RouterReport, Sample, Window
from specray.observability.logs import printable

_SECRET = ("auth", "key", "token", "cookie", "secret")  # parts of names of headers
_LENGTH = 12  # hexadecimal digits
_MOST_NAMED = 8  # tenants in a report
_MOST_COUNTED = 1024


def tenant_of(headers: Mapping[str, str], name: str) -> str:
    """The tenant that a request's header names; empty if it does not.

    What may be a secret is hashed, so that it goes no further: the first 12 hexadecimal digits of
    `sha256`, of a bearer token without the word `Bearer`. So is a name of more than 128 characters
    or of others than printable ASCII, which could not be told from another's once it is cut.
    """
    value = headers.get(name, "").strip()
    if value and is_hashed(name):
        key = value[7:].strip() if value[:7].lower() == "bearer " else value
        return _hashed(key)
    if printable(value) != value:
        # What is left of it may be another's name, who would then share what is a tenant's own.
        return _hashed(value)
    return value


def is_hashed(name: str) -> bool:
    """Whether what a header of that name says is hashed, as it may be a secret."""
    return any(part in name.lower() for part in _SECRET)


def looks_hashed(tenant: str) -> bool:
    """Whether a tenant may be what has become of a header."""
    return len(tenant) == _LENGTH and set(tenant) <= set("0123456789abcdef")


def _hashed(value: str) -> str:
    return hashlib.sha256(value.encode()).hexdigest()[:_LENGTH]


class TenantCounter:
    """Requests by tenant, of those that asked lately. Beyond so many all further ones are one."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._counts: Counter[str] = Counter()
        self._window: Window[Counter[str]] = Window(clock)

    def count(self, tenant: str) -> None:
        """A request has come."""
        is_known = tenant in self._counts or len(self._counts) < _MOST_COUNTED
        self._counts[tenant if is_known else "(others)"] += 1

    def report(self) -> RouterReport:
        """Rates over the last seconds."""
        samples = self._window.add(self._counts.copy())
        seconds = max(1e-9, samples[-1].at_s - samples[0].at_s)
        lately = self._counts - samples[0].counters
        self._forget(set(self._counts) - set(lately), samples)
        tenants = tuple((name, n / seconds) for name, n in lately.most_common(_MOST_NAMED))
        return RouterReport(lately.total() / seconds, tenants)

    def _forget(self, names: set[str], samples: Sequence[Sample[Counter[str]]]) -> None:
        """Forget who has been idle in all samples, there as well: who returns begins at 0."""
        for counts in (self._counts, *(sample.counters for sample in samples)):
            for name in names:
                del counts[name]  # a Counter takes it if there is none
