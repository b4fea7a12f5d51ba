"""The draft deployment: a proposer behind a stream server, one replica a GPU or core."""

import asyncio
import os
from typing import Any

import torch
from ray.serve.handle import DeploymentHandle

from specray.config import DraftConfig
from specray.draft.factory import make_proposer, reconfigure
from specray.draft.service import DraftService
from specray.serve.membership import Member, beat, listen_address
from specray.serve.metrics import DraftMetrics
from specray.wire.server import serve_draft


class DraftServer:
    """Constructed when the model is loaded and warm; then routers may connect."""

    async def __init__(  # type: ignore[misc]  # Serve awaits constructors
        self, config: DraftConfig, listen_host: str, controller: DeploymentHandle
    ) -> None:
        pin(config.cpus)
        self._proposer = make_proposer(config)
        self._service = DraftService(self._proposer)
        await asyncio.to_thread(self._service.warm_up)
        self._service.start()
        self._server = serve_draft(self._service, listen_address(listen_host))
        self._member = Member("draft", self._server.address)
        self._controller = controller
        self._metrics = DraftMetrics(config.method)
        self._heart = asyncio.create_task(
            beat(lambda: controller.heartbeat.remote(self._member), lambda _view: self._publish())
        )

    def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Take over `user_config`, without a restart; raises InvalidConfigError if it is faulty."""
        reconfigure(self._proposer, user_config)

    def check_health(self) -> None:
        """Raise when the proposer has failed, so that Serve replaces the replica."""
        self._service.check_health()

    async def __del__(self) -> None:
        self._heart.cancel()
        await self._controller.leave.remote(self._member)
        self._server.stop(grace_s=1.0)
        self._service.close()

    def _publish(self) -> None:
        self._metrics.publish(self._service.stats())


def pin(cpus: tuple[int, ...]) -> None:
    """Keep this process, and PyTorch's threads in it, on some cores; none leaves it as it is."""
    if cpus:
        os.sched_setaffinity(0, cpus)
        torch.set_num_threads(len(cpus))
