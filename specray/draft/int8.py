"""Linear layers with int8 weights, for drafts on a CPU: a token moves a quarter of the bytes.

Weights are symmetric per output, inputs are rounded to 16 bits by the row. PyTorch's own int8
products round the inputs to eight bits with one scale for all, which a language model's few huge
activations make coarse: they cost more acceptance than the time is worth. What converts weights on
the way instead waits for that, so the product is ours: `int8_product`.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from specray.draft.int8_product import INPUTS, LARGEST_WEIGHT, OUTPUTS, pack, product
from specray.draft.kernels import Array

_TINY = 1e-30  # keeps an output without weights from dividing by zero


class Int8Weights(NamedTuple):
    """Of a matrix product, as `int8_product.product` takes them on this machine's processor."""

    weight: Array  # [groups of outputs, pairs of inputs, OUTPUTS, 2] int8, padded
    scales: Array  # [out] float32
    bias: Array  # [out] float32

    @staticmethod
    def of(weight: Tensor, bias: Tensor | None = None) -> "Int8Weights":
        """Quantises weights.

        Args:
            weight: [out, in] on the CPU, any float type.
            bias: [out].
        """
        weight = weight.detach().float()
        scales = weight.abs().amax(1).clamp_(min=_TINY) / LARGEST_WEIGHT
        rounded = (weight / scales[:, None]).round_().to(torch.int8)
        biases = (
            np.zeros(len(scales), np.float32)
            if bias is None
            else bias.detach().float().contiguous().numpy()
        )
        return Int8Weights(_packed(rounded), scales.numpy(), biases)


def _packed(weight: Tensor) -> Array:
    num_outputs, num_inputs = weight.shape
    padded = pad(weight, (0, -num_inputs % INPUTS, 0, -num_outputs % OUTPUTS))
    # Torch's memory begins with a line, so that no register or row of a tile lies in two.
    packed: Array = torch.from_numpy(pack(padded.numpy())).clone().numpy()
    return packed


class Int8Linear(nn.Module):
    """Stands in for `nn.Linear` on float32 inputs."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """Quantises a layer; see `Int8Weights.of`."""
        super().__init__()
        self._weights = Int8Weights.of(weight, bias)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] float32 → [..., out] float32."""
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        out = torch.empty(len(rows), len(self._weights.scales))
        product()(rows.numpy(), *self._weights, out.numpy())
        return out.view(*x.shape[:-1], -1)


def quantize(model: nn.Module) -> None:
    """Puts an `Int8Linear` in the place of each `nn.Linear`, one by one."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.Linear):
                setattr(parent, name, Int8Linear(child.weight, child.bias))
