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
from specray.target.float_products import (
    BFLOAT16,
    FLOAT32,
    MOST_TOKENS,
    Kind,
    fits,
    install,
    linear,
)

FEATURES = x86_features() or {}
HAS_AVX2 = bool(FEATURES.get("avx2") and FEATURES.get("fma"))
with_avx2 = pytest.mark.skipif(
    not (current_platform.is_cpu() and HAS_AVX2), reason="for CPUs with AVX2"
)
with_bfloat16 = pytest.mark.skipif(
    not (current_platform.is_cpu() and FEATURES.get("avx512bf16")),
    reason="for CPUs with AVX512-BF16",
)
KINDS = (
    pytest.param(FLOAT32, marks=with_avx2, id="float32"),
    pytest.param(BFLOAT16, marks=with_bfloat16, id="bfloat16"),
)
of_each_kind = pytest.mark.parametrize("kind", KINDS)
NUMBERS_OF_TOKENS = (1, 2, 3, 4, 5, 6, 7, 12, 13, 40, MOST_TOKENS)


@pytest.fixture(autouse=True)
def _on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """And as another test leaves it."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    choice = upstream.dispatch_cpu_unquantized_gemm
    monkeypatch.setattr(upstream, "dispatch_cpu_unquantized_gemm", choice)


def install_for(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a processor for which products of the kind are ours, be it this one or not."""
    monkeypatch.setattr(float_products, "kind_for_this_processor", lambda: kind)
    install()


def numbers(*shape: int, kind: Kind = FLOAT32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator).to(kind.dtype)


def assert_rounded(made: torch.Tensor, wanted: torch.Tensor) -> None:
    """As sums in float32, and then to the type; `wanted` is more precise."""
    share = 2**-8 if made.dtype == torch.bfloat16 else 1e-4
    torch.testing.assert_close(made.double(), wanted.double(), rtol=share, atol=1e-3)


def layer_of(weight: torch.Tensor) -> Any:
    layer = torch.nn.Module()
    layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    return layer


@of_each_kind
@pytest.mark.parametrize("num_tokens", NUMBERS_OF_TOKENS)
def test_products_are_those_of_pytorch_and_nothing_else_is_written(
    kind: Kind, num_tokens: int
) -> None:
    # One block of weights; several; inputs of which a pair of outputs is more than a block.
    for num_outputs, num_inputs in ((2, kind.lanes), (1000, 576), (6, 2**15 + 2**6)):
        x, weight = (
            numbers(num_tokens, num_inputs, kind=kind),
            numbers(num_outputs, num_inputs, kind=kind),
        )
        written = torch.full((num_tokens + 2, num_outputs), 7.0, dtype=kind.dtype)
        args = [x.data_ptr(), num_tokens, weight.data_ptr(), num_outputs, num_inputs]
        float_products.product(kind)(*args, written[1:].data_ptr())

        assert_rounded(written[1:-1], functional.linear(x.double(), weight.double()))
        assert (written[[0, -1]] == 7.0).all()


@of_each_kind
@pytest.mark.parametrize("num_tokens", NUMBERS_OF_TOKENS)
def test_a_token_comes_out_the_same_whatever_else_is_in_the_step(
    kind: Kind, num_tokens: int
) -> None:
    for num_outputs, num_inputs in ((960, 576), (576, 1536)):
        x = numbers(num_tokens, num_inputs, kind=kind)
        weight = numbers(num_outputs, num_inputs, kind=kind)
        alone = torch.cat([linear(kind, row, weight, None) for row in x.split(1)])

        assert torch.equal(linear(kind, x, weight, None), alone)


@of_each_kind
def test_a_token_that_is_no_number_leaves_the_others_alone(kind: Kind) -> None:
    x, weight = numbers(5, 64, kind=kind), numbers(32, 64, kind=kind)
    good = linear(kind, x, weight, None)
    x[2] = torch.nan
    made = linear(kind, x, weight, None)

    assert made.isnan().all(1).tolist() == [False, False, True, False, False]
    others = [0, 1, 3, 4]
    assert torch.equal(made[others], good[others])


@of_each_kind
def test_inputs_may_lie_and_be_counted_in_any_way(kind: Kind) -> None:
    weight, bias = numbers(48, 64, kind=kind), numbers(48, kind=kind)
    wide = numbers(2, 3, 128, kind=kind)
    for x in (wide[..., :64], wide[0, :, ::2], wide[0, 0, 64:], wide[0, :0, 64:]):
        made = linear(kind, x, weight, None)

        assert made.shape == (*x.shape[:-1], 48)
        assert_rounded(made, functional.linear(x.double(), weight.double()))
        with_bias = functional.linear(x, weight, bias)
        torch.testing.assert_close(linear(kind, x, weight, bias), with_bias)


@of_each_kind
def test_many_tokens_are_pytorchs(monkeypatch: pytest.MonkeyPatch, kind: Kind) -> None:
    weight = numbers(32, 64, kind=kind)
    monkeypatch.setattr(functional, "linear", lambda *args: args)

    assert isinstance(linear(kind, numbers(MOST_TOKENS, 64, kind=kind), weight, None), torch.Tensor)
    x, bias = numbers(MOST_TOKENS + 1, 64, kind=kind), numbers(32, kind=kind)
    assert linear(kind, x, weight, bias) == (x, weight, bias)


@with_avx2
@pytest.mark.parametrize(
    "x", [torch.zeros(3, 128), torch.zeros(3, 64, dtype=torch.bfloat16)], ids=["width", "dtype"]
)
def test_inputs_of_another_kind_are_refused(x: torch.Tensor) -> None:
    with pytest.raises(RuntimeError, match=r"shapes|dtype"):
        linear(FLOAT32, x, numbers(32, 64), None)


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
    install_for(FLOAT32, monkeypatch)
    layer = layer_of(weight)
    upstream.dispatch_cpu_unquantized_gemm(layer, remove_weight=True)

    assert chosen == [(layer, True)]
    assert not hasattr(layer, "cpu_linear")


@of_each_kind
def test_vllms_layers_multiply_their_weights_as_they_are(
    monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    weight, x = numbers(32, 64, kind=kind), numbers(3, 64, kind=kind)
    layer, method = layer_of(weight), UnquantizedLinearMethod()
    install_for(kind, monkeypatch)
    method.process_weights_after_loading(layer)

    made = linear(kind, x, weight, None)
    assert torch.equal(method.apply(layer, x), made)
    layer.weight.data = 2 * layer.weight  # others were loaded
    assert torch.equal(method.apply(layer, x), 2 * made)


@with_bfloat16
def test_a_bias_is_added_before_sums_are_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, x = numbers(32, 64, kind=BFLOAT16), numbers(3, 64, kind=BFLOAT16)
    bias = -functional.linear(x[0], weight)  # which leaves what rounding has taken
    wanted = functional.linear(x.double(), weight.double(), bias.double())
    assert wanted[0].abs().min() > 0

    assert_rounded(linear(BFLOAT16, x, weight, bias), wanted)
    chosen = []
    monkeypatch.setattr(float_products, "_upstream_choice", lambda *args: chosen.append(args))
    install_for(BFLOAT16, monkeypatch)
    layer = layer_of(weight)
    layer.bias = torch.nn.Parameter(bias)
    upstream.dispatch_cpu_unquantized_gemm(layer, remove_weight=False)
    assert chosen == [(layer, False)]


@of_each_kind
def test_other_weights_may_be_loaded_in_their_place(kind: Kind) -> None:
    x = numbers(3, 64, kind=kind)
    for weight in (numbers(64, 64, kind=kind).t(), numbers(3, 64, kind=kind)):
        made = linear(kind, x, weight, None)

        assert_rounded(made, functional.linear(x.double(), weight.double()))
    doubles = x.double(), numbers(32, 64).double()
    assert torch.equal(linear(kind, *doubles, None), functional.linear(*doubles))
    for num_inputs in (kind.lanes + 1, 2 * kind.lanes - 1):
        x, weight = numbers(3, num_inputs, kind=kind), numbers(32, num_inputs, kind=kind)
        assert torch.equal(linear(kind, x, weight, None), functional.linear(x, weight))
    x, weight = numbers(3, 64, kind=kind), numbers(32, 64, kind=kind)
    assert linear(kind, x.to("meta"), weight, None).is_meta  # nothing is read


@pytest.mark.parametrize(
    "weight",
    [
        torch.zeros(32, 64 + 16, dtype=torch.bfloat16),
        torch.zeros(33, 64, dtype=torch.bfloat16),
        torch.zeros(32, 64),
    ],
    ids=["part of a register", "odd outputs", "float32"],
)
def test_of_bfloat16_others_do_not_fit(weight: torch.Tensor) -> None:
    assert fits(BFLOAT16, torch.zeros(32, 64, dtype=torch.bfloat16))
    assert not fits(BFLOAT16, weight)


def test_several_threads_stay_with_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fits(FLOAT32, torch.zeros(32, 64))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert not fits(FLOAT32, torch.zeros(32, 64))


AVX2 = {"avx2": True, "fma": True}
WITH_BFLOAT16 = AVX2 | {"avx512f": True, "avx512bf16": True}


@pytest.mark.parametrize(
    ("features", "is_zen", "kind"),
    [
        (None, False, None),  # no x86
        ({}, False, None),
        ({"avx2": True}, False, None),
        ({"fma": True}, False, None),
        (AVX2, False, FLOAT32),
        (AVX2, True, None),  # AMD's own library is installed
        (AVX2 | {"avx512f": True}, False, None),
        (WITH_BFLOAT16, False, BFLOAT16),
        (WITH_BFLOAT16, True, None),
        (WITH_BFLOAT16 | {"amx-bf16": True}, False, None),
        (AVX2 | {"avx512bf16": True}, False, FLOAT32),  # AVX-512 is switched off
    ],
)
def test_a_processor_decides_and_the_log_tells(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    features: dict[str, bool] | None,
    kind: Kind | None,
    *,
    is_zen: bool,
) -> None:
    before = upstream.dispatch_cpu_unquantized_gemm
    monkeypatch.setattr(float_products, "x86_features", lambda: features)
    platform = SimpleNamespace(is_zen_cpu=lambda: is_zen)
    monkeypatch.setattr(float_products, "current_platform", platform)
    caplog.set_level(logging.INFO, float_products.logger.name)
    install()

    assert (upstream.dispatch_cpu_unquantized_gemm is not before) == (kind is not None)
    assert ("are specray's" in caplog.text) == (kind is not None)
    if kind is not None:
        assert f"products of {str(kind.dtype).removeprefix('torch.')}" in caplog.text
