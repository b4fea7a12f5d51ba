"""Ray Serve LLM's vLLM engine, with the worker inside the engine core where that is possible."""

from typing import Any

from ray.llm._internal.common.callbacks.base import CallbackBase
from ray.llm._internal.common.utils.cloud_utils import is_remote_path
from ray.llm._internal.serve.core.configs.llm_config import LLMConfig
from ray.llm._internal.serve.engines.vllm.vllm_engine import VLLMEngine

from specray.serve.direct import naming
from specray.target.threads import bound_to_cores


class TargetEngine(VLLMEngine):
    """As its base; on the CPU and without tensor parallelism it needs no worker process.

    Ray Serve LLM 2.60 takes vLLM's multiprocessing executor for any CPU target. Its engine core
    then waits for the worker in a busy loop (`SpinCondition` in vLLM 0.29's `shm_broadcast.py`),
    which takes a core away: half of the machine that specray is first tried on.
    """

    async def start(self) -> None:
        """Start vLLM, first fetching the model onto each of its nodes if it is in a bucket.

        Ray Serve LLM 2.60 sends a task to each node in any case. Where there is nothing to fetch
        (vLLM itself takes models from a folder or a hub) all it does is to import vLLM, 10 to 20 s.
        """
        if not _is_fetched_by_ray(self.llm_config):
            self.llm_config.get_or_create_callback().ctx.run_init_node = False
        await super().start()

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


def _is_fetched_by_ray(config: LLMConfig) -> bool:
    engine = config.get_engine_config()
    is_in_bucket = bool(engine.mirror_config) or is_remote_path(engine.actual_hf_model_id)
    return is_in_bucket or config.callback_config.callback_class is not CallbackBase
