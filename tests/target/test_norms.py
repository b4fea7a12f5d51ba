from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch import Tensor
from vllm import ir
from vllm.platforms import current_platform

from specray.target import norms

pytestmark = pytest.mark.skipif(not current_platform.is_cpu(), reason="for CPUs")
OPS = (ir.ops.rms_norm, ir.ops.fused_add_rms_norm)
EPSILON = 1e-5


@pytest.fixture(autouse=True)
def _installed() -> Iterator[None]:
    with ExitStack() as stack:
        for op in OPS:
            stack.enter_context(op.set_priority(["native"]))  # vLLM's choice on a CPU
        norms.install()
        yield


def values(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def add_and_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    outputs = ir.ops.fused_add_rms_norm.maybe_inplace(x.clone(), residual.clone(), weight, EPSILON)
    assert isinstance(outputs, tuple)
    return outputs


@pytest.mark.parametrize(("dtype", "off_by"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_the_same_as_vllms_operations(dtype: torch.dtype, off_by: float) -> None:
    x, residual = (values(3, 5, 64, dtype=dtype, seed=seed) for seed in (0, 1))
    weight = values(64, dtype=dtype, seed=2)
    close = {"rtol": off_by, "atol": 1e-6}

    expected = ir.ops.rms_norm.impls["native"].impl_fn(x, weight, EPSILON)
    torch.testing.assert_close(ir.ops.rms_norm(x, weight, EPSILON), expected, **close)
    native = ir.ops.fused_add_rms_norm.impls["native"].impl_fn(x, residual, weight, EPSILON)
    for ours, theirs in zip(add_and_norm(x, residual, weight), native, strict=True):
        torch.testing.assert_close(ours, theirs, **close)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_comes_out_the_same_whatever_else_is_in_the_step(dtype: torch.dtype) -> None:
    x, residual, weight = (values(*s, dtype=dtype) for s in ((40, 576), (40, 576), (576,)))
    together = add_and_norm(x, residual, weight)
    for row in range(40):
        alone = add_and_norm(x[row : row + 1], residual[row : row + 1], weight)
        assert torch.equal(alone[0][0], together[0][row])
        assert torch.equal(alone[1][0], together[1][row])


def test_so_does_a_slice_of_a_row() -> None:
    """As queries are before their own norm: one row's lie in one piece, those of more do not."""
    qkv, weight = values(5, 192, dtype=torch.bfloat16), values(32, dtype=torch.bfloat16, seed=1)

    def normed(rows: Tensor) -> Tensor:
        queries = rows.clone()[:, :64].view(len(rows), 2, 32)
        assert ir.ops.rms_norm.dispatch(queries, weight, EPSILON).provider == norms.PROVIDER
        normed = ir.ops.rms_norm(queries, weight, EPSILON)
        residual = rows.clone()[:, :64].view(len(rows), 2, 32)  # as the kernel writes into it
        added = ir.ops.fused_add_rms_norm.maybe_inplace(queries, residual, weight, EPSILON)[0]
        return torch.cat([normed, added])

    together = normed(qkv)
    for place, row in enumerate(qkv.split(1)):
        assert torch.equal(normed(row), together[[place, place + 5]])


@pytest.mark.parametrize(
    "arguments",
    [
        (values(2, 64), values(64, dtype=torch.bfloat16), EPSILON),
        (values(2, 64), None, EPSILON),
        (values(2, 64), values(64), EPSILON, 32),
        (values(2, 100), values(100), EPSILON),  # which the kernels refuse, ending the engine
    ],
    ids=["weight of another dtype", "no weight", "part of the width", "no whole vectors"],
)
def test_what_the_kernels_can_not_is_left_to_vllm(arguments: tuple[Any, ...]) -> None:
    x, *others = arguments
    for op, given in zip(OPS, (arguments, (x, x, *others)), strict=True):
        assert op.dispatch(*given).provider == "native"
        op(*given)


def test_a_residual_of_another_dtype_is_left_to_vllm() -> None:
    x, weight = values(2, 64), values(64)

    chosen = ir.ops.fused_add_rms_norm.dispatch(x, x.bfloat16(), weight, EPSILON)

    assert chosen.provider == "native"


def test_all_widths_that_are_not_refused_can_be_computed() -> None:
    for width in (8, 24, 72, 576):
        x, weight = values(3, width), values(width)
        assert ir.ops.rms_norm.dispatch(x, weight, EPSILON).provider == norms.PROVIDER
        ir.ops.rms_norm(x, weight, EPSILON)
        add_and_norm(x, x, weight)


def test_anothers_choice_holds() -> None:
    ir.ops.rms_norm.register_impl("another")(ir.ops.rms_norm.impls["native"].impl_fn)
    try:
        with ir.ops.rms_norm.set_priority(["another", "native"]):
            norms.install()

            assert ir.ops.rms_norm.get_priority()[0] == "another"
    finally:
        del ir.ops.rms_norm.impls["another"]
