"""What the controller has decided and why, for whoever asks a router over HTTP."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from ray.exceptions import RayError
from ray.llm._internal.serve.core.configs.openai_api_models import OpenAIHTTPException
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from specray.serve.fresh import Fresh

_TIMEOUT_S = 5.0


class Explanation:
    """Asks the controller, but not for each who asks: it has heartbeats to hear."""

    def __init__(
        self, controller: DeploymentHandle, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._controller = controller
        self._answers: Fresh[dict[str, Any]] = Fresh(clock)

    async def read(self) -> dict[str, Any]:
        """`Controller.explain`, half a second old at most.

        Raises:
            OpenAIHTTPException: 503 while the controller is away.
        """
        return await self._answers.get(self._ask)

    async def _ask(self) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = await asyncio.wait_for(
                self._controller.explain.remote(), _TIMEOUT_S
            )
        except (RayError, RayServeException, TimeoutError):
            raise OpenAIHTTPException(
                status_code=503,
                message="the controller is being replaced; requests go on under its last policy",
                type="service_unavailable",
            ) from None
        return answer
