"""RMS norms on a CPU by vLLM's own kernels.

vLLM 0.29 has them in its CPU build, but counts them as kernels of GPUs, and computes each norm by
seven operations of PyTorch: of SmolLM2-135M's step a tenth, for 8 MB of additions.
"""

import torch
from torch import Tensor
from vllm import ir

PROVIDER = "specray_cpu"


def install() -> None:
    """In a worker on a CPU that runs its model eagerly; compiled, norms are fused anyway."""
    if PROVIDER not in ir.ops.rms_norm.impls:
        ir.ops.rms_norm.register_impl(PROVIDER, supports_args=_fits)(norm)
        ir.ops.fused_add_rms_norm.register_impl(
            PROVIDER, supports_args=_fits_with_residual, inplace=True
        )(add_and_norm)
    for op in (ir.ops.rms_norm, ir.ops.fused_add_rms_norm):
        op.set_default([PROVIDER, "native"])


def norm(
    x: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,  # noqa: ARG001  # vLLM's signature
) -> Tensor:
    """Stands in for vLLM's `rms_norm` where `_fits`: x [..., width], weight [width]."""
    output = torch.empty_like(x)
    torch.ops._C.rms_norm(output, x, weight, epsilon)
    return output


def add_and_norm(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,  # noqa: ARG001  # vLLM's signature
) -> tuple[Tensor, Tensor]:
    """Stands in for `fused_add_rms_norm`: the norm of the sum, and the sum, in their places."""
    torch.ops._C.fused_add_rms_norm(x, x_residual, weight, epsilon)
    return x, x_residual


def _fits(
    x: Tensor,
    weight: Tensor | None,
    epsilon: float,  # noqa: ARG001  # vLLM's signature
    variance_size: int | None = None,
) -> bool:
    return (
        variance_size is None
        and weight is not None
        and weight.dtype == x.dtype
        and x.is_contiguous()
    )


def _fits_with_residual(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> bool:
    return (
        _fits(x, weight, epsilon, variance_size)
        and x_residual.dtype == x.dtype
        and x_residual.is_contiguous()
    )
