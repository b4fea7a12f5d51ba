"""What a device can do, measured: for those whose data sheet is not in `control.hardware`."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch

_LARGEST_S = 0.25  # what a size may take, its repetitions together; of the smallest, whatever it is
_REPEATS = 3
_MATRIX_WIDTHS = (
    4096,
    8192,
)  # 64 and 256 MiB in float32: the larger beyond what a core gets to cache
_COPY_BYTES = tuple(1 << i for i in range(26, 30))  # the largest is beyond a GPU's caches
_PRODUCT_WIDTHS = tuple(1 << i for i in range(8, 14))

Clock = Callable[[], float]
"""Counts seconds."""
_Run = Callable[[], object]


class Speeds(NamedTuple):
    """What one device can do."""

    bandwidth: float  # bytes per second
    peak_flops: float  # FLOP/s


class Work(NamedTuple):
    """A piece of work, of one size of several."""

    amount: float  # bytes that it moves, or FLOPs that it computes
    prepare: Callable[[], _Run]  # takes the memory that it needs


def measure(device: torch.device, dtype: torch.dtype, clock: Clock = time.perf_counter) -> Speeds:
    """Measure a device in about a second, and the time that its first kernels take to load.

    A core's bandwidth is that of a matrix times a vector, as its decode steps reach no more; an
    accelerator's is that of a copy. Up to 1 GiB of its memory is taken and given back.

    Args:
        device: Whose; this process has to be one that computes on it anyway.
        dtype: That of the matrices whose product is timed.
        clock: By which.

    Raises:
        torch.OutOfMemoryError: it has no room for that.
    """
    moves = reads(device) if device.type == "cpu" else copies(device)
    bandwidth = rates(moves, device, clock)[-1]  # smaller ones may lie in a cache
    peak_flops = max(rates(products(device, dtype), device, clock))
    if _is_accelerator(device):
        torch.accelerator.empty_cache()
    return Speeds(bandwidth, peak_flops)


@torch.inference_mode()
def rates(works: Sequence[Work], device: torch.device, clock: Clock) -> list[float]:
    """Amounts per second at ascending sizes, up to the first that would take too long.

    Each is that of the fastest of a few runs, after one to warm up: others may use the machine.
    """
    found: list[float] = []
    for amount, prepare in works:
        if found and (1 + _REPEATS) * amount / found[-1] > _LARGEST_S:
            break
        run = prepare()
        seconds = [_run_s(run, device, clock) for _ in range(1 + _REPEATS)]
        found.append(amount / min(seconds[1:]))
    return found


def reads(device: torch.device) -> list[Work]:
    """Matrices times vectors."""

    def prepare(width: int) -> _Run:
        matrix, vector = torch.ones(width, width, device=device), torch.ones(width, device=device)
        return lambda: torch.mv(matrix, vector)

    return [Work(4 * width**2, partial(prepare, width)) for width in _MATRIX_WIDTHS]


def copies(device: torch.device) -> list[Work]:
    """Copies from the device's memory to the same."""

    def prepare(num_bytes: int) -> _Run:
        source = torch.ones(num_bytes, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        return lambda: target.copy_(source)

    return [Work(2 * size, partial(prepare, size)) for size in _COPY_BYTES]


def products(device: torch.device, dtype: torch.dtype) -> list[Work]:
    """Products of square matrices.

    Their numbers differ, as GPUs multiply equal ones on less power, and so faster than a model's.
    """

    def prepare(width: int) -> _Run:
        values = torch.arange(width**2, dtype=torch.float32, device=device).sin_()
        matrix = values.to(dtype).view(width, width)
        return lambda: torch.mm(matrix, matrix)

    return [Work(2 * width**3, partial(prepare, width)) for width in _PRODUCT_WIDTHS]


def _run_s(run: _Run, device: torch.device, clock: Clock) -> float:
    started = clock()
    run()
    if _is_accelerator(device):  # it goes on when the call has returned
        torch.accelerator.synchronize(device)
    return clock() - started


def _is_accelerator(device: torch.device) -> bool:
    return device.type not in ("cpu", "meta")
