"""What the target runs on, and what its model asks of it."""

import time
from collections.abc import Callable
from types import MappingProxyType

import torch
from vllm.config import VllmConfig
from vllm.platforms import current_platform

from specray.control.hardware import HardwareProfile, find_profile, named_profile
from specray.control.roofline import ModelShape, Roofline
from specray.models.size import ModelSize, is_known_dtype, read_size

AUTO = "auto"
_REPEATS = 3
_MATRIX = 4096  # 64 MiB in float32: beyond a core's caches
_LARGEST_PRODUCT = 1024


def find_roofline(vllm_config: VllmConfig, hardware: str) -> Roofline | None:
    """The roofline of a target; None if its device, its model's size or a type is not known.

    Raises:
        InvalidConfigError: the configured hardware is not known.
    """
    profile = named_profile(hardware) if hardware != AUTO else _find_hardware()
    model = vllm_config.model_config
    size = read_size(model.model, model.quantization) if profile is not None else None
    if profile is None or size is None:
        return None
    dtype = str(model.dtype).removeprefix("torch.")
    cache_dtype = str(vllm_config.cache_config.cache_dtype)
    if not (is_known_dtype(dtype) and is_known_dtype(cache_dtype)):
        return None
    shape = model_shape(size, dtype, dtype if cache_dtype == AUTO else cache_dtype)
    return Roofline(shape, profile, vllm_config.parallel_config.tensor_parallel_size)


def step_time_key(vllm_config: VllmConfig, roofline: Roofline | None) -> dict[str, str]:
    """What step times depend on, as far as it does not change while the engine runs."""
    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    return {
        "model": f"{model.model} {model.quantization}",
        "dtype": f"{model.dtype} {vllm_config.cache_config.cache_dtype}",
        "hardware": _device_name() if roofline is None else roofline.hardware.name,
        "ranks": str(parallel.tensor_parallel_size),
        "threads": str(torch.get_num_threads()),
        "eager": str(model.enforce_eager),
    }


def model_shape(size: ModelSize, dtype: str, cache_dtype: str) -> ModelShape:
    """What a forward pass of a model of this size moves and computes.

    Every token is taken to pass through all parameters, which holds for dense models.
    """
    return ModelShape(
        num_parameters=size.num_parameters,
        weight_bytes=size.weight_bytes(dtype),
        kv_bytes_per_token=size.kv_bytes_per_token(cache_dtype),
        num_layers=size.num_layers,
        hidden_size=size.hidden_size,
        dtype=size.compute_dtype(dtype),
        activation_bytes=4.0 if dtype == "float32" else 2.0,
        attention_width=size.num_heads * size.head_dim,
    )


def _find_hardware() -> HardwareProfile | None:
    """A GPU by its name; the cores of this process by measuring them, in well under a second."""
    if not current_platform.is_cpu():
        return find_profile(_device_name())
    bandwidth = _bandwidth()
    return HardwareProfile(
        f"cpu, {torch.get_num_threads()} threads",
        bandwidth=bandwidth,
        peak_flops=MappingProxyType({"float32": _peak_flops()}),
        link_bandwidth=bandwidth,  # ranks share their memory
    )


def _device_name() -> str:
    name: str = current_platform.get_device_name()
    return name


@torch.inference_mode()
def _bandwidth() -> float:
    """Bytes per second that a matrix is read with, times a vector."""
    matrix, vector = torch.ones(_MATRIX, _MATRIX), torch.ones(_MATRIX)
    return matrix.nbytes / _shortest_s(lambda: torch.mv(matrix, vector))


@torch.inference_mode()
def _peak_flops() -> float:
    """FLOP/s of a product of matrices."""
    matrix = torch.ones(_LARGEST_PRODUCT, _LARGEST_PRODUCT)
    return 2 * _LARGEST_PRODUCT**3 / _shortest_s(lambda: torch.mm(matrix, matrix))


def _shortest_s(run: Callable[[], object]) -> float:
    """Seconds of the fastest of a few runs, after one to warm up: others may use the machine."""
    run()
    seconds = []
    for _ in range(_REPEATS):
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
    return min(seconds)
