"""How replicas and the controller find each other: a heartbeat that carries news both ways."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

import ray
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from specray.control.reports import Report
from specray.control.slow_loop import Decisions
from specray.errors import SpecrayError
from specray.types import SpeculationPolicy

logger = logging.getLogger(__name__)

PERIOD_S = 1.0
_GOODBYE_S = 1.0
EXPIRY_S = 4.0  # several heartbeats: a long collection must not look like a death
_SILENCE_S = 3.0  # of everybody: it was the controller that paused

Role = Literal["target", "draft", "router"]


@dataclass(frozen=True, slots=True)
class Member:
    """A replica: a target or draft by its stream server's address, a router by its name."""

    role: Role
    address: str


@dataclass(frozen=True, slots=True)
class View:
    """What the controller knows, for a router or a target."""

    targets: tuple[str, ...]
    drafts: tuple[str, ...]
    policy: SpeculationPolicy
    is_complete: bool = True  # False right after a start: some may not have been heard of yet
    routers: tuple[str, ...] = ()
    max_fan_out: int | None = None  # for drafts; None: as they were configured
    held: Decisions | None = None  # to be told to the controller's replacement

    def completed_by(self, before: "View | None") -> "View":
        """With the replicas that were known before, if this view may lack some of them."""
        if self.is_complete or before is None:
            return self
        targets = sorted({*self.targets, *before.targets})
        drafts = sorted({*self.drafts, *before.drafts})
        return replace(self, targets=tuple(targets), drafts=tuple(drafts))


def listen_address(listen_host: str) -> str:
    """The address that `speculation.listen_host` stands for on this node."""
    address: str = ray.util.get_node_ip_address() if listen_host == "auto" else listen_host
    return address


class Registry:
    """The members that have been heard of lately."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started = clock()
        self._heard_at: float | None = None  # of anybody
        self._seen: dict[Member, float] = {}
        self._reports: dict[Member, Report] = {}

    def hear(self, member: Member, report: Report | None = None) -> None:
        """Note a heartbeat, and what it tells of the member."""
        now = self._clock()
        if self._heard_at is not None and now - self._heard_at > _SILENCE_S:
            self._started = now  # the others' heartbeats are behind this one
        self._seen[member] = self._heard_at = now
        if report is not None:
            self._reports[member] = report

    def forget(self, member: Member) -> None:
        """Drop a member that has said goodbye."""
        self._seen.pop(member, None)
        self._reports.pop(member, None)

    @property
    def is_complete(self) -> bool:
        """Whether every live member has had the time to be heard of."""
        return self._clock() - self._started >= EXPIRY_S

    def addresses(self, role: Role) -> tuple[str, ...]:
        """The addresses of a role's live members, sorted."""
        self._expire()
        return tuple(sorted(member.address for member in self._seen if member.role == role))

    def reports(self) -> dict[Member, Report]:
        """The latest of each live member that has made one."""
        self._expire()
        return dict(self._reports)

    def _expire(self) -> None:
        oldest = self._clock() - EXPIRY_S
        self._seen = {member: at for member, at in self._seen.items() if at >= oldest}
        self._reports = {m: report for m, report in self._reports.items() if m in self._seen}


async def say_goodbye(leave: Callable[[], Awaitable[object]]) -> None:
    """Tell the controller that a replica goes, if there still is one.

    Where the whole service ends it may have gone first, and a call to it would wait until Serve
    kills the caller, 20 s by default.
    """
    with suppress(RayError, RayServeException, TimeoutError):
        await asyncio.wait_for(leave(), _GOODBYE_S)


async def beat(
    ask: Callable[[Decisions | None], Awaitable[View]],
    tell: Callable[[View], Awaitable[None] | None],
) -> None:
    """Ask for the controller's view each period and pass it on, until cancelled.

    Who is asked is told what it had decided when it was last heard of, in case it is new.

    A controller that is away (it is being replaced) is asked again; the last view stays valid.
    Nor does a target that is too busy to answer in time end the heartbeats, nor a fault of ours,
    which is logged with its traceback: a member that falls silent is lost until it is restarted.
    """
    held: Decisions | None = None
    while True:
        try:
            view = await asyncio.wait_for(ask(held), EXPIRY_S)
            held = view.held or held
            told: Any = tell(view)
            if told is not None:
                await told
        except (RayError, RayServeException, SpecrayError, TimeoutError) as error:
            logger.warning("missed a heartbeat: %s", error)
        except Exception:  # the next may go well
            logger.exception("a heartbeat failed")
        await asyncio.sleep(PERIOD_S)
