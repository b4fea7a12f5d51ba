import pytest
import torch
from torch import Tensor, nn

from specray.draft.int8 import Int8Linear, quantize


def layer(num_outputs: int = 40, bias: bool = True) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(96, num_outputs, bias=bias)


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
def test_only_the_weights_are_rounded(num_rows: int, num_outputs: int, bias: bool) -> None:
    linear, x = layer(num_outputs, bias), uneven_rows(num_rows)
    out, expected = Int8Linear(linear.weight, linear.bias)(x), with_rounded_weights(linear, x)
    assert ((out - expected).abs() <= 1e-5 * expected.abs().amax(-1, keepdim=True)).all()


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
