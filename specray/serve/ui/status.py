"""Who is there and what they have counted, as one router sees it."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import Any

from specray.errors import StreamClosedError
from specray.serve.fresh import Fresh
from specray.serve.membership import View
from specray.wire.client import get_stats
from specray.wire.stats import RelayStats, TargetStats


class StatusBoard:
    """Asks targets for their counters when somebody looks, and not for each who does."""

    def __init__(
        self,
        router: str,
        models: Sequence[str],
        ask: Callable[[str], Awaitable[TargetStats]] = get_stats,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._router = router
        self._models = list(models)
        self._ask = ask
        self._statuses: Fresh[dict[str, Any]] = Fresh(clock)

    async def read(
        self, view: View | None, snapshot: Callable[[], Awaitable[RelayStats]]
    ) -> dict[str, Any]:
        """The status, in JSON's types; half a second old at most."""
        return await self._statuses.get(lambda: self._collect(view, snapshot()))

    async def _collect(self, view: View | None, asked: Awaitable[RelayStats]) -> dict[str, Any]:
        targets = view.targets if view else ()
        relay = await asked
        counted = await asyncio.gather(*map(self._counters, targets))
        switches = [relay, *(stats.direct for stats in counted if stats and stats.direct)]
        return {
            "router": self._router,
            "models": self._models,
            "routers": sorted({self._router, *(view.routers if view else ())}),
            "policy": asdict(view.policy) if view else None,
            "targets": [
                {
                    "address": address,
                    "is_connected": address in (relay.connected_targets or ()),
                    "counters": _counters(stats) if stats else None,
                }
                for address, stats in zip(targets, counted, strict=True)
            ],
            "drafts": [
                {
                    "address": address,
                    "is_connected": any(address in (s.connected_drafts or ()) for s in switches),
                    "num_sessions": sum(s.open_sessions.get(address, 0) for s in switches),
                }
                for address in (view.drafts if view else ())
            ],
            "num_sessions_without_draft": sum(s.num_homeless for s in switches),
            "fallbacks": dict(sum((Counter(s.fallbacks) for s in switches), Counter())),
        }

    async def _counters(self, target: str) -> TargetStats | None:
        try:
            return await self._ask(target)
        except StreamClosedError:
            return None


def _counters(stats: TargetStats) -> dict[str, Any]:
    """Totals since the start; the page shows differences between two of them."""
    return {
        "num_steps": stats.num_steps,
        "num_request_steps": stats.num_request_steps,
        "num_committed": stats.num_committed,
        "num_open_sessions": stats.num_open_sessions,
        "num_routers": stats.num_routers,
        "sources": {
            source: {"num_proposed": counts.num_proposed, "num_accepted": counts.num_accepted}
            for source, counts in stats.sources.items()
        },
    }
