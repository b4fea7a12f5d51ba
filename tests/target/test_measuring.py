import math
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from specray.target import measuring

META = torch.device("meta")  # its tensors have shapes and no numbers: nothing is computed


class Device(TorchDispatchMode):  # type: ignore[misc]
    """One with these rates, whose work makes a clock go on by what it would take."""

    def __init__(self, bandwidth: float, peak_flops: float, first_s: float = 0.0) -> None:
        super().__init__()
        self._bandwidth, self._peak_flops, self._first_s = bandwidth, peak_flops, first_s
        self.now = 0.0
        self.num_runs = 0

    def clock(self) -> float:
        return self.now

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.mm.default:
            self._work(2 * math.prod(args[0].shape) * args[1].shape[1] / self._peak_flops)
        elif func is torch.ops.aten.copy_.default:
            self._work(2 * args[1].nbytes / self._bandwidth)
        elif func is torch.ops.aten.mv.default:
            self._work(args[0].nbytes / self._bandwidth)
        return result

    def _work(self, seconds: float) -> None:
        self.num_runs += 1
        self.now += seconds + (self._first_s if self.num_runs == 1 else 0.0)


@pytest.mark.parametrize(
    ("bandwidth", "peak_flops"),
    [(1e9, 2e9), (2e10, 1e11), (3e11, 6.5e13), (1e12, 1e14), (8e12, 2.5e15)],
)
def test_devices_slow_and_fast_are_measured_within_a_second(
    bandwidth: float, peak_flops: float
) -> None:
    with Device(bandwidth, peak_flops) as device:
        speeds = measuring.measure(META, torch.bfloat16, device.clock)

    assert speeds == pytest.approx((bandwidth, peak_flops))
    assert 8 <= device.num_runs <= 40
    assert device.now < 1.1


def test_a_cores_reads_are_measured_within_their_time() -> None:
    with Device(2e9, 1e9) as device:
        (rate,) = measuring.rates(measuring.reads(META), META, device.clock)

    assert rate == pytest.approx(2e9)
    assert device.now < 0.3


def test_a_first_run_that_loads_kernels_does_not_keep_from_the_large_sizes() -> None:
    with Device(8e12, 2.5e15, first_s=5.0) as device:
        rates = measuring.rates(measuring.copies(META), META, device.clock)

    assert rates == pytest.approx([8e12] * 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_all_of_it_runs_on_real_memory(dtype: torch.dtype) -> None:
    cpu = torch.device("cpu")
    ticks = iter(range(10_000))  # a second each: no size but the smallest is tried

    for works in (measuring.reads(cpu), measuring.copies(cpu), measuring.products(cpu, dtype)):
        rates = measuring.rates(works, cpu, lambda: float(next(ticks)))
        assert rates == [works[0].amount]
