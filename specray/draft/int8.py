"""Linear layers with int8 weights, for drafts on a CPU: a token moves a quarter of the bytes.

Weights are symmetric per output channel. Inputs keep their precision: FBGEMM's kernel takes int8
inputs, one scale for all of them, and language models have channels and tokens hundreds of times
larger than the rest, so each row goes in as two, a coarse one and the remainder magnified. The
weights are read once for both, and reading them is what takes the time.
"""

import warnings
from functools import cache
from typing import Final

import torch
from torch import Tensor, nn

_ENGINE: Final = "fbgemm"
_TINY: Final = 1e-30  # keeps a row of zeros from dividing by zero


class Int8Linear(nn.Module):
    """Stands in for `nn.Linear` on float32 inputs. A row's result depends on that row alone."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """Quantises a layer.

        Args:
            weight: [out, in] on the CPU, any float type.
            bias: [out].
        """
        super().__init__()
        self._packed = _pack(weight.detach().float())
        self._bias = None if bias is None else bias.detach().float()
        self._limit = 63 if _saturates() else 127
        # A row that spans exactly the kernel's range of inputs, so that its scale is always 1.
        self._ends = torch.zeros(1, weight.shape[1])
        self._ends[0, 0], self._ends[0, 1] = -self._limit - 1, self._limit

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] float32 → [..., out] float32."""
        rows = x.reshape(-1, x.shape[-1])
        num_rows, finer = len(rows), 2 * self._limit
        largest = torch.linalg.vector_norm(rows, torch.inf, dim=1, keepdim=True)
        scale = self._limit / largest.clamp_(min=_TINY)
        scaled = rows * scale
        coarse = scaled.round()
        remainder = scaled.sub_(coarse).mul_(finer)
        doubled = torch.cat((coarse, remainder, self._ends))
        out = torch.ops.quantized.linear_dynamic(doubled, self._packed, self._limit == 63)
        out = torch.add(out[:num_rows], out[num_rows:-1], alpha=1 / finer).div_(scale)
        if self._bias is not None:
            out += self._bias
        return out.view(*x.shape[:-1], -1)


def is_available() -> bool:
    """Whether this machine's PyTorch has the kernel; it is built for x86-64 only."""
    return _ENGINE in torch.backends.quantized.supported_engines


def quantize(model: nn.Module) -> None:
    """Puts an `Int8Linear` in the place of each `nn.Linear`, one by one."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.Linear):
                setattr(parent, name, Int8Linear(child.weight, child.bias))


def _pack(weight: Tensor) -> torch.ScriptObject:
    scales = weight.abs().amax(1).clamp_(min=_TINY) / 127
    zero_points = torch.zeros(len(weight), dtype=torch.long)
    previous = torch.backends.quantized.engine
    torch.backends.quantized.engine = _ENGINE
    try:
        with warnings.catch_warnings():
            # Tensors of type qint8 are deprecated in torch 2.13, which we pin, but the kernel can't
            # be reached without one; those that can are half as fast.
            warnings.filterwarnings("ignore", message=r"torch\.quantize_per_tensor")
            quantized = torch.quantize_per_channel(weight, scales, zero_points, 0, torch.qint8)
            return torch.ops.quantized.linear_prepack(quantized)
    finally:
        torch.backends.quantized.engine = previous


@cache
def _saturates() -> bool:
    """Whether products are summed in pairs of 16 bits, as on CPUs without VNNI.

    There inputs must keep to 7 bits. All of 255 and 127 makes the largest sum.
    """
    ones = torch.ones(1, 64)
    out = torch.ops.quantized.linear_dynamic(ones, _pack(ones.expand(8, 64).contiguous()), False)
    return bool((out < 60).any())
