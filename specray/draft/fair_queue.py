"""Whose turn it is, where many tenants want the same draft's time."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace


@dataclass(slots=True)
class _Tenant:
    weight: float
    waiting: dict[int, float] = field(default_factory=dict)  # id -> cost, oldest first
    finish: float = 0.0  # virtual time at which what it has been given is paid


class FairQueue:
    """Start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996) of sessions.

    While several tenants wait, each is given time in proportion to its weight, however much it asks
    for; what one leaves is the others'. Within a tenant the oldest comes first. Nobody saves up
    time by asking for little. Memory is bounded by the tenants that wait.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        """Takes the tenants' weights; 1 for those that are not named."""
        self._weights = weights
        self._tenants: dict[str, _Tenant] = {}
        self._owners: dict[int, str] = {}
        self._now = 0.0  # virtual

    def __len__(self) -> int:
        return len(self._owners)

    @property
    def num_tenants(self) -> int:
        """Tenants that wait."""
        return sum(bool(tenant.waiting) for tenant in self._tenants.values())

    def put(self, item: int, tenant: str, cost: float) -> None:
        """Queues an item, behind its tenant's others; one that waits already keeps its place."""
        if self._owners.get(item) == tenant:
            self._tenants[tenant].waiting[item] = cost
            return
        self.discard(item)
        if tenant not in self._tenants:
            self._tenants[tenant] = _Tenant(self._weights.get(tenant, 1.0), finish=self._now)
        self._tenants[tenant].waiting[item] = cost
        self._owners[item] = tenant

    def discard(self, item: int) -> None:
        """Takes an item out; unknown ids are ignored."""
        tenant = self._owners.pop(item, None)
        if tenant is not None:
            del self._tenants[tenant].waiting[item]
            self._tidy()

    def take(self, most: int) -> list[int]:
        """The next items, at most so many."""
        starts = [(self._start(t), n, t) for n, t in enumerate(self._tenants.values()) if t.waiting]
        heapify(starts)
        taken: list[int] = []
        while starts and len(taken) < most:
            self._now, n, tenant = starts[0]
            item = next(iter(tenant.waiting))
            tenant.finish = self._now + tenant.waiting.pop(item) / tenant.weight
            del self._owners[item]
            taken.append(item)
            if tenant.waiting:
                heapreplace(starts, (tenant.finish, n, tenant))
            else:
                heappop(starts)
        self._tidy()
        return taken

    def _start(self, tenant: _Tenant) -> float:
        return max(self._now, tenant.finish)

    def _tidy(self) -> None:
        """Forgets tenants that want nothing and owe nothing; all of them once nobody waits."""
        self._tenants = {
            name: tenant
            for name, tenant in self._tenants.items()
            if self._owners and (tenant.waiting or tenant.finish > self._now)
        }
