import pytest
import torch
from torch import Tensor
from vllm import ir
from vllm.platforms import current_platform

from specray.target import norms

pytestmark = pytest.mark.skipif(not current_platform.is_cpu(), reason="for CPUs")
EPSILON = 1e-5


@pytest.fixture(autouse=True)
def _installed() -> None:
    norms.install()
    yield
    for op in (ir.ops.rms_norm, ir.ops.fused_add_rms_norm):
        op.set_default(["native"])


def values(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(dtype)


@pytest.mark.parametrize(("dtype", "off_by"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_the_same_as_vllms_operations(dtype: torch.dtype, off_by: float) -> None:
    x, residual, weight = (values(*s, dtype=dtype) for s in ((3, 5, 64), (3, 5, 64), (64,)))

    expected = ir.ops.rms_norm.impls["native"].impl_fn(x, weight, EPSILON)
    torch.testing.assert_close(ir.ops.rms_norm(x, weight, EPSILON), expected, rtol=off_by, atol=0)
    native = ir.ops.fused_add_rms_norm.impls["native"].impl_fn(x, residual, weight, EPSILON)
    ours = ir.ops.fused_add_rms_norm.maybe_inplace(x.clone(), residual.clone(), weight, EPSILON)
    for mine, theirs in zip(ours, native, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=off_by, atol=1e-6)


def test_a_row_comes_out_the_same_whatever_else_is_in_the_step() -> None:
    x, residual, weight = values(40, 576), values(40, 576) + 1, values(576)
    together = ir.ops.fused_add_rms_norm.maybe_inplace(x.clone(), residual.clone(), weight, EPSILON)
    for row in range(40):
        alone = ir.ops.fused_add_rms_norm.maybe_inplace(
            x[row : row + 1].clone(), residual[row : row + 1].clone(), weight, EPSILON
        )
        assert torch.equal(alone[0][0], together[0][row])
        assert torch.equal(alone[1][0], together[1][row])


def test_computed_by_vllms_kernels() -> None:
    x, weight = values(2, 64), values(64)

    assert ir.ops.rms_norm.dispatch(x, weight, EPSILON).provider == norms.PROVIDER
    assert ir.ops.fused_add_rms_norm.dispatch(x, x, weight, EPSILON).provider == norms.PROVIDER


@pytest.mark.parametrize(
    "arguments",
    [
        (values(2, 128)[:, :64], values(64), EPSILON),  # the rows don't lie one after the other
        (values(2, 64), values(64, dtype=torch.bfloat16), EPSILON),
        (values(2, 64), None, EPSILON),
        (values(2, 64), values(64), EPSILON, 32),
    ],
)
def test_what_the_kernels_can_not_is_left_to_vllm(arguments: tuple[object, ...]) -> None:
    assert ir.ops.rms_norm.dispatch(*arguments).provider == "native"
    x, *others = arguments
    assert ir.ops.fused_add_rms_norm.dispatch(x, x, *others).provider == "native"


def test_a_residual_of_another_kind_is_left_to_vllm() -> None:
    x, weight = values(2, 64), values(64)

    for residual in (values(2, 64, dtype=torch.bfloat16), values(2, 128)[:, :64]):
        chosen = ir.ops.fused_add_rms_norm.dispatch(x, residual, weight, EPSILON)
        assert chosen.provider == "native"
