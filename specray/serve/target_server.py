"""The target deployment: Ray Serve LLM's server, whose vLLM carries our plug-ins."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager

from ray.serve.handle import DeploymentHandle
from ray.serve.llm import LLMConfig
from ray.serve.llm.deployment import LLMServer

from specray.serve.membership import Member, View, beat, listen_address
from specray.serve.metrics import TargetMetrics
from specray.types import SpeculationPolicy
from specray.wire.client import configure, get_stats


class TargetServer(LLMServer):
    """Serves the model like its base, and keeps its engine's stream server known and counted."""

    async def __init__(  # type: ignore[misc]  # Serve awaits constructors
        self, llm_config: LLMConfig, listen_host: str, controller: DeploymentHandle
    ) -> None:
        from specray.target import rendezvous, workarounds  # vLLM, in the replica only

        workarounds.apply_to_frontend()
        rendezvous.offer_host(listen_address(listen_host))
        with _all_cores():
            await super().__init__(llm_config)
        self._controller = controller
        self._member = Member("target", rendezvous.take_address())
        self._policy: SpeculationPolicy | None = None
        self._metrics = TargetMetrics()
        self._heart = asyncio.create_task(
            beat(lambda: controller.heartbeat.remote(self._member), self._follow)
        )

    def _get_default_engine_class(self) -> type:
        from specray.serve.target_engine import TargetEngine  # vLLM, in the replica only

        return TargetEngine

    async def __del__(self) -> None:
        self._heart.cancel()
        await self._controller.leave.remote(self._member)
        await super().__del__()

    async def _follow(self, view: View) -> None:
        if view.policy != self._policy:
            await configure(self._member.address, view.policy)
            self._policy = view.policy
        self._metrics.publish(await get_stats(self._member.address))


@contextmanager
def _all_cores() -> Iterator[None]:
    """Lift this process's pinning while the engine's processes start.

    They inherit it, and vLLM binds its threads only to cores that it may use.
    """
    inherited = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    try:
        yield
    finally:
        os.sched_setaffinity(0, inherited)
