"""RMS norms on a CPU by vLLM's own kernels.

vLLM 0.29 has them in its CPU build, but counts them as kernels of GPUs, and computes each norm by
seven operations of PyTorch: a tenth of SmolLM2-135M's step, which has 61.
"""

import torch
from torch import Tensor
from vllm import ir
from vllm.platforms import current_platform

current_platform.import_kernels()

PROVIDER = "specray_cpu"
_VECTOR = 8  # the kernels take so many values at a time, and nothing less


def install() -> None:
    """In a worker on a CPU, unless other code was chosen by vLLM's `ir_op_priority`."""
    for op in (ir.ops.rms_norm, ir.ops.fused_add_rms_norm):
        if op.get_priority() == ["native"]:
            op.set_default([PROVIDER, "native"])


def _fits(
    x: Tensor,
    weight: Tensor | None,
    epsilon: float,  # noqa: ARG001  # vLLM's signature
    variance_size: int | None = None,
) -> bool:
    """Whether the kernels can compute it; that must not hang on how many rows there are.

    Both round at other places, so that a step of other size would choose other tokens: a slice of
    one row lies in one piece, that of more rows does not.
    """
    return (
        variance_size is None
        and weight is not None
        and weight.dtype == x.dtype
        and x.shape[-1] % _VECTOR == 0
    )


def _fits_with_residual(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> bool:
    return x_residual.dtype == x.dtype and _fits(x, weight, epsilon, variance_size)


@ir.ops.rms_norm.register_impl(PROVIDER, supported=current_platform.is_cpu(), supports_args=_fits)
def norm(
    x: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,  # noqa: ARG001  # vLLM's signature
) -> Tensor:
    """Stands in for vLLM's `rms_norm`: x [..., width], weight [width]."""
    x = x.contiguous()
    output = torch.empty_like(x)
    torch.ops._C.rms_norm(output, x, weight, epsilon)
    return output


@ir.ops.fused_add_rms_norm.register_impl(
    PROVIDER,
    supported=current_platform.is_cpu(),
    supports_args=_fits_with_residual,
    inplace=True,
)
def add_and_norm(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,  # noqa: ARG001  # vLLM's signature
) -> tuple[Tensor, Tensor]:
    """Stands in for `fused_add_rms_norm`: the norm of the sum, and the sum, in their places."""
    x, x_residual = x.contiguous(), x_residual.contiguous()
    torch.ops._C.fused_add_rms_norm(x, x_residual, weight, epsilon)
    return x, x_residual
