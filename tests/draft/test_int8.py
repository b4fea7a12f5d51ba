import warnings

import pytest
import torch
from torch import Tensor, nn

from specray.draft import int8
from specray.draft.int8 import Int8Linear, quantize

pytestmark = pytest.mark.skipif(not int8.is_available(), reason="no kernel for this processor")


def layer(bias: bool = True) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(96, 40, bias=bias)


def with_rounded_weights(linear: nn.Linear, x: Tensor) -> Tensor:
    """The same product with 8-bit weights and exact inputs."""
    scales = linear.weight.abs().amax(1, keepdim=True) / 127
    weight = (linear.weight / scales).round() * scales
    return nn.functional.linear(x, weight, linear.bias)


def uneven_rows() -> Tensor:
    """Rows and channels of very different sizes, as models have them."""
    x = torch.randn(3, 5, 96)
    x[..., 7] *= 100
    x[1, 2] *= 1000
    x[0, 1] = 0
    return x


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("saturates", [True, False])
@torch.inference_mode()
def test_only_the_weights_are_rounded(
    bias: bool, saturates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(int8, "_saturates", lambda: saturates)
    linear, x = layer(bias), uneven_rows()
    out, expected = Int8Linear(linear.weight, linear.bias)(x), with_rounded_weights(linear, x)
    tolerance = (2e-3 if saturates else 5e-4) * expected.abs().amax(-1, keepdim=True)
    assert ((out - expected).abs() <= tolerance).all()


@torch.inference_mode()
def test_a_row_does_not_depend_on_the_others() -> None:
    linear, x = layer(), uneven_rows()
    quantized = Int8Linear(linear.weight, linear.bias)
    assert torch.equal(quantized(x[2, 1:3]), quantized(x)[2, 1:3])


def test_all_linear_layers_are_replaced_without_a_warning() -> None:
    model = nn.Sequential(nn.Embedding(5, 96), nn.Sequential(layer(), nn.ReLU()), nn.LayerNorm(40))
    engine = torch.backends.quantized.engine
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quantize(model)
    assert torch.backends.quantized.engine == engine
    kinds = [type(module) for module in model.modules() if not list(module.children())]
    assert kinds == [nn.Embedding, Int8Linear, nn.ReLU, nn.LayerNorm]
