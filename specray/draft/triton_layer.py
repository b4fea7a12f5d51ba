"""A layer of a Llama-like model on a GPU: matrix products, and few kernels between them."""

from torch import Tensor
from torch.nn.functional import linear

from specray.draft import triton_kernels
from specray.draft.llama_layer import LayerWeights, Norm, Weights


class TritonNorm:
    """A `Norm` in one kernel."""

    def __init__(self, norm: Norm) -> None:
        self._norm = norm

    def __call__(self, x: Tensor) -> Tensor:
        """The normed tokens, [tokens, hidden]."""
        return triton_kernels.rms_norm(x, *self._norm)


class TritonLayer:
    """A `Layer` that adds what it computes to its input, in place."""

    def __init__(self, weights: LayerWeights) -> None:
        self._weights = weights
        self._attention_norm = TritonNorm(weights.attention_norm)
        self._mlp_norm = TritonNorm(weights.mlp_norm)
        self._head_norm = weights.head_norm or (None, 0.0)

    def qkv(self, x: Tensor, turns: Tensor) -> Tensor:
        """See `Layer`."""
        qkv = linear(self._attention_norm(x), *self._weights.qkv)
        qkv = qkv.unflatten(1, (-1, self._weights.head_dim))
        triton_kernels.turn(qkv, self._weights.num_turned, turns, *self._head_norm)
        return qkv

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """See `Layer`."""
        _add_product(x, attended, self._weights.out)
        gate_up = linear(self._mlp_norm(x), *self._weights.gate_up)
        _add_product(x, triton_kernels.gated(gate_up), self._weights.down)
        return x


def _add_product(x: Tensor, factor: Tensor, weights: Weights) -> None:
    x.addmm_(factor, weights.weight.T)
    if weights.bias is not None:
        x.add_(weights.bias)
