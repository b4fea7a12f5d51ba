"""vLLM's own worker without its fault in sampled speculation: for comparing with its own drafts."""

from vllm.platforms import current_platform

from specray.target import workarounds

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as _Worker
else:
    from vllm.v1.worker.gpu_worker import Worker as _Worker


class MendedWorker(_Worker):
    """As its base. The faults of vLLM's CPU build would make what others sample garbage."""

    def init_device(self) -> None:
        """Mend upstream's faults, then build the model runner."""
        workarounds.apply_to_worker()
        super().init_device()
