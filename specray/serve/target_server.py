"""The target deployment: Ray Serve LLM's server, whose vLLM carries our plug-ins."""

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from fastapi import FastAPI
from ray import serve
from ray.serve.handle import DeploymentHandle
from ray.serve.llm import LLMConfig
from ray.serve.llm.deployment import LLMServer

from specray.config import EngineCoreConfig, TargetPluginConfig
from specray.control.reports import TargetReport, TargetReporter
from specray.serve.direct import Front, FrontConfig
from specray.serve.logs import engine_log, join_serve
from specray.serve.membership import Member, View, beat, listen_address, say_goodbye
from specray.serve.metrics import TargetMetrics
from specray.types import SpeculationPolicy
from specray.wire.client import configure, get_stats


class TargetServer(LLMServer):
    """Serves the model like its base, and keeps its engine's stream server known and counted."""

    async def __init__(  # type: ignore[misc]  # Serve awaits constructors
        self,
        llm_config: LLMConfig,
        plugin: TargetPluginConfig,
        listen_host: str,
        controller: DeploymentHandle,
        front: FrontConfig | None = None,
    ) -> None:
        """Takes what it serves, and with whom it speaks.

        Args:
            llm_config: Ray Serve LLM's.
            plugin: how it speculates.
            listen_host: address of its stream server, or `auto`.
            controller: hears of it, and says what the policy is.
            front: for direct streaming; None if routers stand between it and the clients.
        """
        from specray.target import rendezvous, workarounds  # vLLM, in the replica only

        workarounds.apply_to_frontend()
        join_serve()
        replica = serve.get_replica_context()
        instance = replica.replica_id.unique_id
        rendezvous.offer(
            EngineCoreConfig(
                plugin=plugin,
                listen_host=listen_address(listen_host),
                log_file=engine_log(),
                instance=instance,
            )
        )
        self._front = Front(front, instance) if front is not None else None
        with _all_cores():
            await super().__init__(llm_config)
        self._controller = controller
        self._member = Member("target", rendezvous.take_address())
        self._policy: SpeculationPolicy | None = None
        self._metrics = TargetMetrics(has_drafts=plugin.has_drafts)
        self._reporter = TargetReporter(replica.deployment, time.monotonic)
        self._report: TargetReport | None = None
        self._heart = asyncio.create_task(
            beat(
                lambda held: controller.heartbeat.remote(self._member, self._report, held),
                self._follow,
            )
        )

    def _get_default_engine_class(self) -> type:
        from specray.serve.target_engine import TargetEngine  # vLLM, in the replica only

        return TargetEngine

    async def __serve_build_asgi_app__(self) -> FastAPI:
        app = await super().__serve_build_asgi_app__()
        return self._front.put_before(app) if self._front is not None else app

    async def __del__(self) -> None:
        self._heart.cancel()
        if self._front is not None:
            self._front.close()
        await say_goodbye(lambda: self._controller.leave.remote(self._member))
        await super().__del__()

    async def _follow(self, view: View) -> None:
        if view.policy != self._policy:
            await configure(self._member.address, view.policy)
            self._policy = view.policy
        stats = await get_stats(self._member.address)
        self._metrics.publish(stats)
        report = self._reporter.report(stats)
        if self._front is not None:
            report = replace(report, tenants=self._front.tenants())
        self._report = report


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
