"""Linear layers with int8 weights, for drafts on a CPU: a token moves a quarter of the bytes.

Weights are symmetric per output, inputs are rounded to 16 bits by the row. PyTorch's own int8
products round the inputs to eight bits with one scale for all, which a language model's few huge
activations make coarse: they cost more acceptance than the time is worth. What converts weights on
the way instead waits for that, so the product is ours: `int8_product`.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from specray.draft.int8_product import WIDTH, multiply

_TINY = 1e-30  # keeps an output without weights from dividing by zero


class Int8Linear(nn.Module):
    """Stands in for `nn.Linear` on float32 inputs."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """Quantises a layer.

        Args:
            weight: [out, in] on the CPU, any float type.
            bias: [out].
        """
        super().__init__()
        self._num_outputs = len(weight)
        padding = (0, -weight.shape[1] % WIDTH, 0, len(weight) % 2)  # the kernel takes pairs
        weight = pad(weight.detach().float(), padding)
        scales = weight.abs().amax(1).clamp_(min=_TINY) / 127
        self._weight = (weight / scales[:, None]).round_().to(torch.int8).numpy()
        self._scales = scales.numpy()
        self._bias = None if bias is None else bias.detach().float()

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] float32 → [..., out] float32."""
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        out = torch.empty(len(rows), len(self._scales))
        multiply(rows.numpy(), self._weight, self._scales, out.numpy())
        out = out[:, : self._num_outputs]
        if self._bias is not None:
            out += self._bias
        return out.view(*x.shape[:-1], -1)


def quantize(model: nn.Module) -> None:
    """Puts an `Int8Linear` in the place of each `nn.Linear`, one by one."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.Linear):
                setattr(parent, name, Int8Linear(child.weight, child.bias))
