"""The draft deployment: a proposer behind a stream server, one replica a GPU or core."""

import asyncio
import os
import time
from collections.abc import Awaitable
from typing import Any

from ray import serve
from ray.serve.handle import DeploymentHandle

from specray.config import (
    MAX_FAN_OUT,
    DraftConfig,
    LiveDraftConfig,
    ObservabilityConfig,
    SpeculationConfig,
)
from specray.control.reports import DraftReport
from specray.control.slow_loop import Decisions
from specray.draft.factory import make_proposer, reconfigure
from specray.draft.report import DraftReporter
from specray.draft.service import DraftService
from specray.errors import InvalidConfigError
from specray.observability.journal import open_journal
from specray.serve.logs import join_serve
from specray.serve.membership import Member, View, beat, listen_address, say_goodbye
from specray.serve.metrics import DraftMetrics
from specray.serve.simulation import Simulation
from specray.serve.user_config import UserConfig
from specray.wire.server import serve_draft
from specray.wire.timeline import open_timeline


class DraftServer:
    """Constructed when the model is loaded and warm; then routers may connect."""

    async def __init__(  # type: ignore[misc]  # Serve awaits constructors
        self,
        config: DraftConfig,
        speculation: SpeculationConfig,
        controller: DeploymentHandle,
        observability: ObservabilityConfig,
    ) -> None:
        join_serve()
        self._user_config = UserConfig("draft")
        pin(config.cpus)
        self._simulation = Simulation(config.simulation) if config.simulation else None
        slowness = self._simulation.slowness if self._simulation else None
        self._proposer = make_proposer(config, slowness)
        replica = serve.get_replica_context()
        instance = replica.replica_id.unique_id
        journal = open_journal(observability, "draft", instance)
        timeline = open_timeline(observability.timeline, "draft")
        self._service = DraftService(
            self._proposer, journal=journal, timeline=timeline, weights=config.weights
        )
        await asyncio.to_thread(self._service.warm_up)
        self._service.start()
        self._server = serve_draft(self._service, listen_address(speculation.listen_host))
        address = self._server.address
        if self._simulation is not None:
            address = self._simulation.start(address)
        self._member = Member("draft", address)
        self._controller = controller
        self._metrics = DraftMetrics(config.method)
        self._reporter = DraftReporter(replica.deployment, time.monotonic)
        self._report: DraftReport | None = None
        self._heart = asyncio.create_task(beat(self._ask, self._follow))

    def _ask(self, held: Decisions | None) -> Awaitable[View]:
        self._service.check_health()  # one that is dead is not to be found
        answer: Awaitable[View] = self._controller.heartbeat.remote(
            self._member, self._report, held
        )
        return answer

    def reconfigure(
        self,
        user_config: dict[str, Any] | None,
        rank: object = None,  # noqa: ARG002  # Serve passes None on only to those who take one
    ) -> None:
        """Take over `user_config`, without a restart.

        Raises:
            InvalidConfigError: it is faulty. Once the draft is in use that is logged instead.
        """
        with self._user_config:
            live = LiveDraftConfig.model_validate(user_config or {})
            reconfigure(self._proposer, live)
            if self._simulation is not None:
                self._simulation.set(live.simulation)

    def check_health(self) -> None:
        """Raise when the proposer has failed, so that Serve replaces the replica."""
        self._service.check_health()

    async def __del__(self) -> None:
        self._heart.cancel()
        await say_goodbye(lambda: self._controller.leave.remote(self._member))
        self._server.stop(grace_s=1.0)
        self._service.close()
        if self._simulation is not None:
            self._simulation.stop()

    def _follow(self, view: View) -> None:
        self._user_config.in_use()
        self._service.limit_fan_out(MAX_FAN_OUT if view.max_fan_out is None else view.max_fan_out)
        stats = self._service.stats()
        self._metrics.publish(stats)
        self._report = self._reporter.report(stats)


def pin(cpus: tuple[int, ...]) -> None:
    """Keep this process on some cores; none leaves it where it is.

    Raises:
        InvalidConfigError: this machine has none of these cores.
    """
    if cpus:
        try:
            os.sched_setaffinity(0, cpus)
        except OSError as error:
            raise InvalidConfigError(
                f"draft.cpus: this node has none of the cores {list(cpus)} ({error.strerror})"
            ) from None
