import json
import os
import subprocess
import sys

import numba
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from specray.draft.int8 import Int8Linear, Int8Weights, quantize
from specray.draft.int8_product import product
from specray.registers import x86_features


def layer(num_outputs: int = 40, bias: bool = True) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(96, num_outputs, bias=bias)


def input_rounding(linear: nn.Linear, x: Tensor) -> Tensor:
    """What the rounding of a row to 16 bits may make of each output, at most."""
    largest, total = x.abs().amax(-1, keepdim=True), x.abs().sum(-1, keepdim=True)
    steps = torch.maximum(largest / (2**15 - 130), total / (0.998 * 2**31 / 127 - x.shape[-1]))
    return 0.51 * steps * linear.weight.abs().sum(1)


def with_rounded_weights(linear: nn.Linear, x: Tensor) -> Tensor:
    """The same product with 8-bit weights and exact inputs."""
    scales = linear.weight.abs().amax(1, keepdim=True) / 127
    weight = (linear.weight / scales).round() * scales
    return nn.functional.linear(x, weight, linear.bias)


def uneven_rows(num_rows: int) -> Tensor:
    """Rows and channels of very different sizes, as models have them."""
    x = torch.randn(num_rows, 96)
    x[:, 7] *= 100
    x[num_rows // 2] *= 1000
    return x


@pytest.mark.parametrize("num_rows", [1, 2, 3, 4, 5, 6, 7, 12, 16, 17, 40])
@pytest.mark.parametrize(
    ("num_outputs", "bias"),
    [(1, True), (2, False), (31, True), (64, True), (65, True), (130, False)],
)
@torch.inference_mode()
def test_little_is_rounded_but_the_weights(num_rows: int, num_outputs: int, bias: bool) -> None:
    linear, x = layer(num_outputs, bias), uneven_rows(num_rows)
    out, expected = Int8Linear(linear.weight, linear.bias)(x), with_rounded_weights(linear, x)
    allowed = input_rounding(linear, x) + 1e-5 * expected.abs().amax(-1, keepdim=True)
    assert ((out - expected).abs() <= allowed).all()


@pytest.mark.parametrize("num_inputs", [1, 31, 33, 64, 65, 200])
@torch.inference_mode()
def test_any_number_of_inputs(num_inputs: int) -> None:
    torch.manual_seed(0)
    linear, x = nn.Linear(num_inputs, 6, bias=False), torch.randn(3, num_inputs)
    expected = with_rounded_weights(linear, x)
    torch.testing.assert_close(Int8Linear(linear.weight)(x), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("num_inputs", [576, 20000])
@torch.inference_mode()
def test_the_largest_sums_have_room(num_inputs: int) -> None:
    weight, x = torch.ones(2, num_inputs), torch.ones(1, num_inputs)
    weight[1] = -1
    out = Int8Linear(weight)(x)
    assert out[0].tolist() == pytest.approx([num_inputs, -num_inputs], rel=1e-3)


@pytest.mark.parametrize("num_inputs", [576, 8192])
@torch.inference_mode()
def test_one_huge_input_leaves_the_others_their_digits(num_inputs: int) -> None:
    torch.manual_seed(0)
    linear, x = nn.Linear(num_inputs, 64, bias=False), torch.randn(4, num_inputs)
    x[:, 5] = 1000.0
    out, expected = Int8Linear(linear.weight)(x), with_rounded_weights(linear, x)
    assert ((out - expected).abs() <= input_rounding(linear, x) + 1e-5 * expected.abs()).all()
    x[:, 5] = 0.0
    others = with_rounded_weights(linear, x)
    assert (out - expected).norm() < 0.02 * others.norm()


@torch.inference_mode()
def test_what_is_not_a_number_is_not_hidden() -> None:
    linear, x = layer(), torch.randn(3, 96)
    x[1, 4] = torch.nan
    x[2, 4] = torch.inf
    out = Int8Linear(linear.weight, linear.bias)(x)
    assert out[0].isfinite().all()
    assert out[1:].isnan().all()


@torch.inference_mode()
def test_weights_may_lie_in_any_order() -> None:
    weight, x = torch.randn(64, 40, generator=torch.Generator().manual_seed(0)), torch.ones(1, 64)
    assert torch.equal(Int8Linear(weight.t())(x), Int8Linear(weight.t().contiguous())(x))


@pytest.mark.parametrize("bias", [torch.ones(1).expand(64), torch.arange(128.0)[::2]])
@torch.inference_mode()
def test_a_bias_may_lie_in_any_order(bias: Tensor) -> None:
    weight, x = torch.randn(64, 40, generator=torch.Generator().manual_seed(0)), torch.ones(2, 40)
    assert torch.equal(Int8Linear(weight, bias)(x), Int8Linear(weight, bias.contiguous())(x))


@torch.inference_mode()
def test_a_row_is_the_same_bit_by_bit_wherever_it_stands() -> None:
    linear, x = layer(65), uneven_rows(36)
    quantized = Int8Linear(linear.weight, linear.bias)
    out = quantized(x)
    for num_rows in range(1, 20):
        for first in range(36 - num_rows + 1):
            rows = slice(first, first + num_rows)
            assert torch.equal(quantized(x[rows]), out[rows])


@pytest.mark.parametrize("num_outputs", [1, 31, 33, 64])
def test_nothing_is_written_beside_the_outputs(num_outputs: int) -> None:
    weights = Int8Weights.of(torch.ones(num_outputs, 9), torch.ones(num_outputs))
    room = np.full((19, num_outputs), 7.0, np.float32)
    product()(np.ones((17, 9), np.float32), *weights, room[1:-1])
    assert room[1:-1] == pytest.approx(10.0, rel=1e-2)
    assert (room[[0, -1]] == 7.0).all()


@pytest.mark.parametrize(
    ("lacking", "order"),
    [
        (["avx512", "avx10", "amx"], "int8_pairs"),
        (["avx512vnni", "amx"], "int8_pairs"),
        (["amx"], "int8_digits"),
    ],
)
def test_compiled_for_a_processor_that_has_less(lacking: list[str], order: str) -> None:
    features = x86_features() or {}
    if order == "int8_digits" and not features.get("avx512vnni"):
        pytest.skip("a processor without AVX-512 VNNI")
    code = f"""
import llvmlite.binding as binding
known = binding.get_host_cpu_features()
masked = {{name: has and not name.startswith({tuple(lacking)}) for name, has in known.items()}}
binding.get_host_cpu_features = lambda: type(known)(masked)
import torch
from specray.draft import int8_product
from specray.draft.int8 import Int8Linear
assert int8_product.MOST_ROWS == 6
assert int8_product.pack.__module__.endswith("{order}")
torch.manual_seed(0)
weight, bias, x = torch.randn(65, 1000), torch.randn(65), torch.rand(23, 1000) + 1
print(Int8Linear(weight, bias)(x).flatten().tolist())
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    torch.manual_seed(0)
    weight, bias, x = torch.randn(65, 1000), torch.randn(65), torch.rand(23, 1000) + 1
    assert json.loads(done.stdout) == Int8Linear(weight, bias)(x).flatten().tolist()


@pytest.mark.parametrize("setting", [("NUMBA_CPU_NAME", "generic"), ("NUMBA_ENABLE_AVX", "0")])
def test_compiled_for_a_processor_without_the_instruction(setting: tuple[str, str]) -> None:
    code = """
import torch
from specray.draft.int8 import Int8Linear
torch.manual_seed(0)
weight, x = torch.randn(65, 1000), torch.rand(9, 1000) + 1
print(Int8Linear(weight)(x).flatten().tolist())
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | dict([setting]),
        check=True,
        capture_output=True,
        text=True,
    )
    torch.manual_seed(0)
    weight, x = torch.randn(65, 1000), torch.rand(9, 1000) + 1
    assert json.loads(done.stdout) == Int8Linear(weight)(x).flatten().tolist()


@pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS < 2, reason="one core")
@pytest.mark.parametrize("num_rows", [7, 40])
@torch.inference_mode()
def test_several_threads_give_the_same(num_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    linear, x = layer(300), uneven_rows(num_rows)
    quantized = Int8Linear(linear.weight, linear.bias)
    expected = quantized(x)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert torch.equal(quantized(x), expected)


@torch.inference_mode()
def test_a_row_does_not_depend_on_the_others() -> None:
    linear, x = layer(), uneven_rows(6).view(2, 3, 96)
    x[1, 2] = 0
    quantized = Int8Linear(linear.weight, linear.bias)
    out = quantized(x)
    torch.testing.assert_close(quantized(x[:, 1:2]), out[:, 1:2], rtol=1e-5, atol=1e-3)
    assert out[1, 2].tolist() == linear.bias.tolist()


def test_all_linear_layers_are_replaced() -> None:
    model = nn.Sequential(nn.Embedding(5, 96), nn.Sequential(layer(), nn.ReLU()), nn.LayerNorm(40))
    quantize(model)
    kinds = [type(module) for module in model.modules() if not list(module.children())]
    assert kinds == [nn.Embedding, Int8Linear, nn.ReLU, nn.LayerNorm]
