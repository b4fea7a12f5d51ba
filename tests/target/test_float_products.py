from types import SimpleNamespace
from typing import Any

import pytest
import torch
import vllm.model_executor.layers.utils as upstream
from torch.nn.functional import linear
from vllm.platforms import current_platform

from specray.target import float_products

pytestmark = pytest.mark.skipif(
    not current_platform.is_cpu() or not float_products.num_lanes(), reason="for CPUs with AVX2"
)
NUMBERS_OF_TOKENS = (1, 2, 3, 4, 5, 6, 7, 12, 13, 40)


@pytest.fixture(autouse=True)
def _on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    for name in ("dispatch_cpu_unquantized_gemm", "check_cpu_sgl_kernel"):
        monkeypatch.setattr(upstream, name, getattr(upstream, name))


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def layer_of(weight: torch.Tensor) -> Any:
    layer = torch.nn.Module()
    layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    return layer


@pytest.mark.parametrize("lanes", [8, 16])  # LLVM divides what is wider than the processor's
@pytest.mark.parametrize("num_tokens", NUMBERS_OF_TOKENS)
def test_products_are_those_of_pytorch_and_nothing_else_is_written(
    num_tokens: int, lanes: int
) -> None:
    # One block of weights; several; inputs of which a pair of outputs is more than a block.
    for num_outputs, num_inputs in ((2, 16), (1000, 576), (6, 2**14 + 2**6)):
        x, weight = numbers(num_tokens, num_inputs), numbers(num_outputs, num_inputs)
        written = torch.full((num_tokens + 2, num_outputs), 7.0)
        args = [x.data_ptr(), num_tokens, weight.data_ptr(), num_outputs, num_inputs]
        float_products.product(lanes)(*args, written[1:].data_ptr())

        wanted = linear(x.double(), weight.double()).float()
        torch.testing.assert_close(written[1:-1], wanted, rtol=1e-4, atol=1e-3)
        assert (written[[0, -1]] == 7.0).all()


@pytest.mark.parametrize("num_tokens", NUMBERS_OF_TOKENS)
def test_a_token_comes_out_the_same_whatever_else_is_in_the_step(num_tokens: int) -> None:
    multiply = float_products.linear()
    for num_outputs, num_inputs in ((960, 576), (576, 1536)):
        x, weight = numbers(num_tokens, num_inputs), numbers(num_outputs, num_inputs)
        alone = torch.cat([multiply(row, weight, None) for row in x.split(1)])

        assert torch.equal(multiply(x, weight, None), alone)


def test_a_token_that_is_no_number_leaves_the_others_alone() -> None:
    multiply, x, weight = float_products.linear(), numbers(5, 64), numbers(32, 64)
    good = multiply(x, weight, None)
    x[2] = torch.nan

    assert multiply(x, weight, None).isnan().all(1).tolist() == [False, False, True, False, False]
    assert torch.equal(multiply(x, weight, None)[3:], good[3:])


def test_inputs_may_lie_and_be_counted_in_any_way() -> None:
    multiply, weight, bias = float_products.linear(), numbers(48, 64), numbers(48)
    wide = numbers(2, 3, 128)
    for x in (wide[..., :64], wide[0, :, ::2], wide[0, 0, 64:], wide[0, :0, 64:]):
        made = multiply(x, weight, bias)

        assert made.shape == (*x.shape[:-1], 48)
        torch.testing.assert_close(made, linear(x, weight, bias))
        torch.testing.assert_close(multiply(x, weight, None), linear(x, weight))


@pytest.mark.parametrize(
    "weight",
    [
        torch.zeros(33, 64),
        torch.zeros(32, 64 + 4),
        torch.zeros(64, 32).t(),
        torch.zeros(2, 32, 64),
        torch.zeros(32, 64, dtype=torch.bfloat16),
        torch.zeros(32, 64, device="meta"),
    ],
    ids=["odd outputs", "part of a register", "columns", "experts", "bfloat16", "no memory"],
)
def test_weights_of_other_kinds_stay_with_vllm(
    monkeypatch: pytest.MonkeyPatch, weight: torch.Tensor
) -> None:
    chosen = []
    monkeypatch.setattr(float_products, "_upstream_choice", lambda *args: chosen.append(args))
    float_products.install()
    layer = layer_of(weight)
    upstream.dispatch_cpu_unquantized_gemm(layer, remove_weight=True)

    assert chosen == [(layer, True)]
    assert not hasattr(layer, "cpu_linear")


@pytest.mark.parametrize("remove_weight", [True, False])
def test_a_layers_weights_are_multiplied_as_they_are(*, remove_weight: bool) -> None:
    weight, x = numbers(32, 64), numbers(3, 64)
    layer = layer_of(weight)
    float_products.install()
    upstream.dispatch_cpu_unquantized_gemm(layer, remove_weight=remove_weight)

    assert torch.equal(layer.weight, weight)
    for _ in range(2):
        made = upstream.cpu_unquantized_gemm(layer, x, layer.weight, None)
        assert torch.equal(made, float_products.linear()(x, layer.weight, None))
        layer.weight.data = 2 * layer.weight  # others were loaded


def test_several_threads_stay_with_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    assert float_products.fits(torch.zeros(32, 64))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert not float_products.fits(torch.zeros(32, 64))


@pytest.mark.parametrize(
    ("features", "lanes"),
    [
        (None, 0),  # no x86
        ({}, 0),
        ({"avx2": True}, 0),
        ({"avx2": True, "fma": True}, 8),
        ({"avx2": True, "fma": True, "avx512f": True}, 16),
        ({"fma": True}, 0),
    ],
)
def test_a_processors_registers_decide(
    monkeypatch: pytest.MonkeyPatch, features: dict[str, bool] | None, lanes: int
) -> None:
    monkeypatch.setattr(float_products, "x86_features", lambda: features)

    assert float_products.num_lanes() == lanes
    assert float_products.fits(torch.zeros(32, 64)) == (lanes > 0)


def test_where_amds_own_library_is_installed_it_multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    before = upstream.dispatch_cpu_unquantized_gemm
    platform = SimpleNamespace(is_zen_cpu=lambda: True)
    monkeypatch.setattr(float_products, "current_platform", platform)
    float_products.install()

    assert upstream.dispatch_cpu_unquantized_gemm is before
