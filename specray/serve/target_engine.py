"""Ray Serve LLM's vLLM engine, with the worker inside the engine core where that is possible."""

from typing import Any

from ray.llm._internal.serve.engines.vllm.vllm_engine import VLLMEngine

from specray.serve.direct import naming
from specray.target.threads import bound_to_cores


class TargetEngine(VLLMEngine):
    """As its base; on the CPU and without tensor parallelism it needs no worker process.

    Ray Serve LLM 2.60 takes vLLM's multiprocessing executor for any CPU target. Its engine core
    then waits for the worker in a busy loop (`SpinCondition` in vLLM 0.29's `shm_broadcast.py`),
    which takes a core away: half of the machine that specray is first tried on.
    """

    async def build_asgi_app(self) -> Any:
        """vLLM's HTTP application, for direct streaming."""
        self._engine_client.generate = naming(self._engine_client.generate)
        return await super().build_asgi_app()

    def _start_async_llm_engine(
        self, vllm_engine_args: Any, vllm_engine_config: Any, placement_group: Any
    ) -> Any:
        start = super()._start_async_llm_engine
        parallel = vllm_engine_config.parallel_config
        if parallel.world_size > 1 or parallel.distributed_executor_backend != "mp":
            return start(vllm_engine_args, vllm_engine_config, placement_group)
        with bound_to_cores(vllm_engine_config):
            parallel.distributed_executor_backend = "uni"
            return start(vllm_engine_args, vllm_engine_config, placement_group)
