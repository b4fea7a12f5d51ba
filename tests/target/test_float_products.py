import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import vllm.model_executor.layers.utils as upstream
from torch.nn import functional
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.platforms import current_platform

from specray.registers import x86_features
from specray.target import float_products
from specray.target.float_products import MOST_TOKENS, fits, install, linear

HAS_AVX2 = bool((x86_features() or {}).get("avx2") and (x86_features() or {}).get("fma"))
with_avx2 = pytest.mark.skipif(
    not (current_platform.is_cpu() and HAS_AVX2), reason="for CPUs with AVX2"
)
NUMBERS_OF_TOKENS = (1, 2, 3, 4, 5, 6, 7, 12, 13, 40, MOST_TOKENS)


@pytest.fixture(autouse=True)
def _on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """And on a processor for which products are ours, also where wider ones are vLLM's."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(float_products, "is_for_this_processor", lambda: True)
    choice = upstream.dispatch_cpu_unquantized_gemm
    monkeypatch.setattr(upstream, "dispatch_cpu_unquantized_gemm", choice)


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def layer_of(weight: torch.Tensor) -> Any:
    layer = torch.nn.Module()
    layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    return layer


@with_avx2
@pytest.mark.parametrize("num_tokens", NUMBERS_OF_TOKENS)
def test_products_are_those_of_pytorch_and_nothing_else_is_written(num_tokens: int) -> None:
    # One block of weights; several; inputs of which a pair of outputs is more than a block.
    for num_outputs, num_inputs in ((2, 8), (1000, 576), (6, 2**14 + 2**6)):
        x, weight = numbers(num_tokens, num_inputs), numbers(num_outputs, num_inputs)
        written = torch.full((num_tokens + 2, num_outputs), 7.0)
        args = [x.data_ptr(), num_tokens, weight.data_ptr(), num_outputs, num_inputs]
        float_products.product()(*args, written[1:].data_ptr())

        wanted = functional.linear(x.double(), weight.double()).float()
        torch.testing.assert_close(written[1:-1], wanted, rtol=1e-4, atol=1e-3)
        assert (written[[0, -1]] == 7.0).all()


@with_avx2
@pytest.mark.parametrize("num_tokens", NUMBERS_OF_TOKENS)
def test_a_token_comes_out_the_same_whatever_else_is_in_the_step(num_tokens: int) -> None:
    for num_outputs, num_inputs in ((960, 576), (576, 1536)):
        x, weight = numbers(num_tokens, num_inputs), numbers(num_outputs, num_inputs)
        alone = torch.cat([linear(row, weight, None) for row in x.split(1)])

        assert torch.equal(linear(x, weight, None), alone)


@with_avx2
def test_a_token_that_is_no_number_leaves_the_others_alone() -> None:
    x, weight = numbers(5, 64), numbers(32, 64)
    good = linear(x, weight, None)
    x[2] = torch.nan
    made = linear(x, weight, None)

    assert made.isnan().all(1).tolist() == [False, False, True, False, False]
    others = [0, 1, 3, 4]
    assert torch.equal(made[others], good[others])


@with_avx2
def test_inputs_may_lie_and_be_counted_in_any_way() -> None:
    weight, bias, wide = numbers(48, 64), numbers(48), numbers(2, 3, 128)
    for x in (wide[..., :64], wide[0, :, ::2], wide[0, 0, 64:], wide[0, :0, 64:]):
        made = linear(x, weight, bias)

        assert made.shape == (*x.shape[:-1], 48)
        torch.testing.assert_close(made, functional.linear(x, weight, bias))
        torch.testing.assert_close(linear(x, weight, None), functional.linear(x, weight))


@with_avx2
def test_many_tokens_are_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = numbers(32, 64)
    monkeypatch.setattr(functional, "linear", lambda *args: args)

    assert isinstance(linear(numbers(MOST_TOKENS, 64), weight, None), torch.Tensor)
    x, bias = numbers(MOST_TOKENS + 1, 64), numbers(32)
    assert linear(x, weight, bias) == (x, weight, bias)


@with_avx2
@pytest.mark.parametrize(
    "x", [torch.zeros(3, 128), torch.zeros(3, 64, dtype=torch.bfloat16)], ids=["width", "dtype"]
)
def test_inputs_of_another_kind_are_refused(x: torch.Tensor) -> None:
    with pytest.raises(RuntimeError, match=r"shapes|dtype"):
        linear(x, numbers(32, 64), None)


@pytest.mark.parametrize(
    "weight",
    [
        torch.zeros(33, 64),
        torch.zeros(32, 64 + 4),
        torch.zeros(32, 0),
        torch.zeros(64, 32).t(),
        torch.zeros(2, 32, 64),
        torch.zeros(32, 64, dtype=torch.bfloat16),
        torch.zeros(32, 64, device="meta"),
    ],
    ids=["odd outputs", "part of a register", "none", "columns", "experts", "bfloat16", "nowhere"],
)
def test_weights_of_other_kinds_stay_with_vllm(
    monkeypatch: pytest.MonkeyPatch, weight: torch.Tensor
) -> None:
    chosen = []
    monkeypatch.setattr(float_products, "_upstream_choice", lambda *args: chosen.append(args))
    install()
    layer = layer_of(weight)
    upstream.dispatch_cpu_unquantized_gemm(layer, remove_weight=True)

    assert chosen == [(layer, True)]
    assert not hasattr(layer, "cpu_linear")


@with_avx2
def test_vllms_layers_multiply_their_weights_as_they_are() -> None:
    weight, x = numbers(32, 64), numbers(3, 64)
    layer, method = layer_of(weight), UnquantizedLinearMethod()
    install()
    method.process_weights_after_loading(layer)

    assert layer.cpu_linear is linear
    torch.testing.assert_close(method.apply(layer, x), functional.linear(x, weight))
    layer.weight.data = 2 * layer.weight  # others were loaded
    torch.testing.assert_close(method.apply(layer, x), 2 * functional.linear(x, weight))


def test_several_threads_stay_with_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fits(torch.zeros(32, 64))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert not fits(torch.zeros(32, 64))


@pytest.mark.parametrize(
    ("features", "is_zen", "is_taken"),
    [
        (None, False, False),  # no x86
        ({}, False, False),
        ({"avx2": True}, False, False),
        ({"fma": True}, False, False),
        ({"avx2": True, "fma": True}, False, True),
        ({"avx2": True, "fma": True}, True, False),  # AMD's own library is installed
        ({"avx2": True, "fma": True, "avx512f": True}, False, False),
    ],
)
def test_a_processor_decides_and_the_log_tells(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    features: dict[str, bool] | None,
    *,
    is_zen: bool,
    is_taken: bool,
) -> None:
    monkeypatch.undo()
    before = upstream.dispatch_cpu_unquantized_gemm
    monkeypatch.setattr(upstream, "dispatch_cpu_unquantized_gemm", before)
    monkeypatch.setattr(float_products, "x86_features", lambda: features)
    platform = SimpleNamespace(is_zen_cpu=lambda: is_zen)
    monkeypatch.setattr(float_products, "current_platform", platform)
    caplog.set_level(logging.INFO, float_products.logger.name)
    install()

    assert (upstream.dispatch_cpu_unquantized_gemm is not before) == is_taken
    assert ("are specray's" in caplog.text) == is_taken
