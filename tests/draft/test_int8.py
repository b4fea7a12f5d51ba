import json
import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

from specray.draft.int8 import Int8Linear, quantize


def layer(num_outputs: int = 40, bias: bool = True) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(96, num_outputs, bias=bias)


def input_rounding(linear: nn.Linear, x: Tensor) -> Tensor:
    """What the rounding of a row to 16 bits may make of each output, at most."""
    most = min(2**15 - 2, 2**31 / 127 / 128 - 2)
    steps = x.abs().amax(-1, keepdim=True) / most
    return 0.501 * steps * linear.weight.abs().sum(1) * 1.01


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


@pytest.mark.parametrize("num_rows", [1, 2, 3, 4, 5, 7, 12])
@pytest.mark.parametrize(("num_outputs", "bias"), [(2, False), (65, True), (130, False)])
@torch.inference_mode()
def test_little_is_rounded_but_the_weights(num_rows: int, num_outputs: int, bias: bool) -> None:
    linear, x = layer(num_outputs, bias), uneven_rows(num_rows)
    out, expected = Int8Linear(linear.weight, linear.bias)(x), with_rounded_weights(linear, x)
    allowed = input_rounding(linear, x) + 1e-5 * expected.abs().amax(-1, keepdim=True)
    assert ((out - expected).abs() <= allowed).all()


@pytest.mark.parametrize("num_inputs", [1, 31, 33, 200])
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


def test_compiled_for_a_processor_without_the_instruction() -> None:
    code = """
import torch
from specray.draft.int8 import Int8Linear
torch.manual_seed(0)
weight, x = torch.randn(65, 70), torch.randn(7, 70)
print(Int8Linear(weight)(x).flatten().tolist())
"""
    results = [
        json.loads(
            subprocess.run(
                [sys.executable, "-c", code],
                env=os.environ | added,
                check=True,
                capture_output=True,
                text=True,
            ).stdout
        )
        for added in ({}, {"NUMBA_CPU_NAME": "generic"})
    ]
    assert results[0] == results[1]


@torch.inference_mode()
def test_several_threads_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    linear, x = layer(300), uneven_rows(7)
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
