"""Who makes room, where sessions of many tenants want more places or memory than there are."""

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

_EQUAL: Mapping[str, float] = MappingProxyType({})


class Held(NamedTuple):
    """What a session holds of what is scarce."""

    session_id: int
    tenant: str
    amount: float  # places, or tokens of memory


class FairShare:
    """The tenant that holds the most for its weight makes room, by its idlest session.

    So a tenant that opens ever more sessions evicts its own, however long those of others have
    been idle: one that waits in a target's queue is idle, too.
    """

    def __init__(self, weights: Mapping[str, float] = _EQUAL) -> None:
        """Takes the tenants' weights, as `FairQueue` does; 1 for those that are not named."""
        self._weights = weights

    def choose(
        self,
        held: Iterable[Held],
        needed: Collection[int],
        short: float,
        asking: str | None = None,
    ) -> list[int]:
        """The sessions to be evicted, in this order; none where all would not be enough.

        Args:
            held: What each session holds, or would with what it asks for; the idlest first.
            needed: Sessions that must stay.
            short: How much is to be freed.
            asking: The tenant that wants room, if it can do without: it gets none from tenants
                that hold less than itself.
        """
        loads: defaultdict[str, float] = defaultdict(float)
        idle: defaultdict[str, deque[Held]] = defaultdict(deque)
        for one in held:
            loads[one.tenant] += self._load(one)
            if one.amount > 0 and one.session_id not in needed:
                idle[one.tenant].append(one)
        chosen = []
        while short > 0:
            # Of tenants that hold as much, the one whose session is the idlest.
            greediest = max(
                (name for name in idle if idle[name]), key=loads.__getitem__, default=None
            )
            if greediest is None or (asking is not None and loads[asking] > loads[greediest]):
                return []
            one = idle[greediest].popleft()
            loads[greediest] -= self._load(one)
            short -= one.amount
            chosen.append(one.session_id)
        return chosen

    def _load(self, held: Held) -> float:
        return held.amount / self._weights.get(held.tenant, 1.0)
