"""What the target runs on, and what its model asks of it."""

import logging
import platform
from pathlib import Path
from types import MappingProxyType

import torch
from vllm.config import VllmConfig
from vllm.platforms import current_platform

from specray.control.hardware import HardwareProfile, find_profile, named_profile
from specray.control.model_shape import shape_of
from specray.control.roofline import Roofline
from specray.models.size import is_known_dtype, read_size
from specray.target import measuring

logger = logging.getLogger(__name__)

AUTO = "auto"
_CPU_CODE = "2"  # of what computes a step, to be raised where that becomes faster
_PCIE_4 = 32e9  # bytes per second out of a GPU; its links are not measured


def find_roofline(
    vllm_config: VllmConfig, hardware: str, measured: HardwareProfile | None = None
) -> Roofline | None:
    """The roofline of a target; None if its device, its model's size or a type is not known.

    Cores that were not measured yet are measured, in about a second, as the process computes on
    them. A GPU is left to the worker (`measure_device`): the engine may be another process.

    Args:
        vllm_config: The engine's.
        hardware: What is configured.
        measured: What the device could do when it was measured; for those without a data sheet.

    Raises:
        InvalidConfigError: the configured hardware is not known.
    """
    profile = named_profile(hardware) if hardware != AUTO else find_profile(_device_name())
    profile = profile or measured
    if profile is None and current_platform.is_cpu():
        profile = _measure(torch.device("cpu"), vllm_config.model_config.dtype)
    model = vllm_config.model_config
    size = read_size(model.model, model.quantization) if profile is not None else None
    if profile is None or size is None:
        return None
    dtype = str(model.dtype).removeprefix("torch.")
    cache_dtype = str(vllm_config.cache_config.cache_dtype)
    if not (is_known_dtype(dtype) and is_known_dtype(cache_dtype)):
        return None
    shape = shape_of(size, dtype, dtype if cache_dtype == AUTO else cache_dtype)
    return Roofline(shape, profile, vllm_config.parallel_config.tensor_parallel_size)


def measure_device(
    vllm_config: VllmConfig, hardware: str, device: torch.device
) -> HardwareProfile | None:
    """What a worker's GPU can do, in about a second; None if that is known or can't be measured."""
    if hardware != AUTO or device.type == "cpu" or find_profile(_device_name()) is not None:
        return None
    try:
        profile = _measure(device, vllm_config.model_config.dtype)
    except RuntimeError as error:  # out of memory, of which libraries tell in their own ways
        logger.warning("no memory to measure the GPU, so steps alone teach: %s", error)
        return None
    logger.info("there is no data sheet of %s; measured: %s", profile.name, profile.state())
    return profile


def step_time_key(vllm_config: VllmConfig, hardware: str) -> dict[str, str]:
    """What step times depend on, as far as it does not change while the engine runs."""
    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    key = {
        "model": f"{model.model} {model.quantization}",
        "dtype": f"{model.dtype} {vllm_config.cache_config.cache_dtype}",
        "hardware": _hardware_name() if hardware == AUTO else hardware,
        "ranks": str(parallel.tensor_parallel_size)
        + (" by experts" * parallel.enable_expert_parallel),
        "threads": str(torch.get_num_threads()),
        "eager": str(model.enforce_eager),
    }
    return key | {"code": _CPU_CODE} if current_platform.is_cpu() else key


def _measure(device: torch.device, dtype: torch.dtype) -> HardwareProfile:
    is_cpu = device.type == "cpu"
    if is_cpu and dtype == torch.float16:
        dtype = torch.float32  # torch multiplies it by a slow kernel, which vLLM does without
    speeds = measuring.measure(device, dtype)
    return HardwareProfile(
        f"cpu, {torch.get_num_threads()} threads" if is_cpu else _device_name(),
        bandwidth=speeds.bandwidth,
        peak_flops=MappingProxyType({str(dtype).removeprefix("torch."): speeds.peak_flops}),
        link_bandwidth=speeds.bandwidth if is_cpu else _PCIE_4,  # cores' ranks share their memory
    )


def _hardware_name() -> str:
    if current_platform.is_cpu():
        return f"{_cpu_model()}, {torch.get_num_threads()} threads"
    profile = find_profile(_device_name())
    return profile.name if profile is not None else _device_name()


def _cpu_model() -> str:
    """As Linux tells it; of other systems, and of Arm's cores, what Python or their codes tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    fields = {key.strip(): value.strip() for key, _, value in (x.partition(":") for x in lines)}
    known = [fields[key] for key in ("model name", "CPU implementer", "CPU part") if key in fields]
    return " ".join(known) or platform.processor() or platform.machine()


def _device_name() -> str:
    name: str = current_platform.get_device_name()
    return name
