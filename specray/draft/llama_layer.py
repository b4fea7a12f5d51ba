"""A layer of a Llama-like model, around its attention; transformers' is the reference.

A small draft spends as long between its matrix products as in them, so here queries, keys and
values come from one product, gate and up from another, and all heads turn in one operation.
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional


class Weights(NamedTuple):
    """Of a matrix product."""

    weight: Tensor  # [out, in]
    bias: Tensor | None  # [out]

    @staticmethod
    def of(linear: nn.Linear) -> "Weights":
        """What the layer holds."""
        bias = None if linear.bias is None else linear.bias.detach()
        return Weights(linear.weight.detach(), bias)

    @staticmethod
    def joined(*parts: "Weights") -> "Weights":
        """One product for several."""
        weight = torch.cat([part.weight for part in parts])
        if all(part.bias is None for part in parts):
            return Weights(weight, None)
        biases = [
            part.weight.new_zeros(len(part.weight)) if part.bias is None else part.bias
            for part in parts
        ]
        return Weights(weight, torch.cat(biases))

    def paired(self, dim: int) -> "Weights":
        """Puts output i + dim / 2 of each head next to output i, with which it turns.

        Queries and keys are reordered alike, so their products stay.
        """
        order = _pairs(len(self.weight), dim)
        return Weights(self.weight[order], None if self.bias is None else self.bias[order])


class Norm(NamedTuple):
    """x / sqrt(mean(x²) + epsilon) * weight."""

    weight: Tensor  # [hidden] float32; of heads [heads, dim]
    epsilon: float

    @staticmethod
    def of(norm: nn.Module) -> "Norm":
        """What transformers' holds."""
        return Norm(norm.weight.detach().float(), norm.variance_epsilon)

    def paired(self) -> "Norm":
        """The norm of one head whose outputs are paired."""
        return Norm(self.weight[_pairs(len(self.weight), len(self.weight))], self.epsilon)


def _pairs(size: int, dim: int) -> Tensor:
    """The order of outputs in which those that turn together lie side by side, head by head."""
    return torch.arange(size).view(-1, 2, dim // 2).transpose(1, 2).flatten()


class LayerWeights(NamedTuple):
    """What a layer is made from."""

    attention_norm: Norm
    qkv: Weights  # queries and keys paired: see `Weights.paired`
    out: Weights
    mlp_norm: Norm
    gate_up: Weights
    down: Weights
    head_dim: int
    num_turned: int  # heads that turn: those of the queries and of the keys
    head_norm: Norm | None  # of these, before they turn


class Layer(Protocol):
    """What comes before the attention, and what comes after."""

    def qkv(self, x: Tensor, turns: Tensor) -> Tensor:
        """Queries, keys and values, [tokens, heads + 2 * kv_heads, dim].

        Args:
            x: [tokens, hidden].
            turns: of the tokens' positions; see `Rotation`.
        """
        ...

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """The layer's output, [tokens, hidden], with what its heads attended to."""
        ...


class RmsNorm:
    """A `Norm`, computed in float32."""

    def __init__(self, norm: Norm) -> None:
        size = norm.weight.shape[-1]
        self._weight = norm.weight * size**0.5
        self._floor = norm.weight.new_tensor((size * norm.epsilon) ** 0.5)

    def __call__(self, x: Tensor) -> Tensor:
        """The normed tokens, [tokens, hidden]; or their heads, [tokens, heads, dim]."""
        size = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        return (x / size.hypot_(self._floor)).mul(self._weight).to(x.dtype)


class Rotation:
    """Rotary positions. The two numbers that turn together lie side by side: `Weights.paired`."""

    def __init__(self, rotary: nn.Module) -> None:
        self._frequencies = rotary.inv_freq.float()
        self._scale = torch.full_like(self._frequencies, rotary.attention_scaling)

    def at(self, positions: Tensor) -> Tensor:
        """The turns at `positions` [tokens], complex [tokens, 1, dim / 2]."""
        angles = positions[:, None, None] * self._frequencies
        return torch.polar(self._scale.expand_as(angles), angles)

    @staticmethod
    def turn(heads: Tensor, turns: Tensor) -> None:
        """Turns heads [tokens, heads, dim] in place."""
        pairs = torch.view_as_complex(heads.float().unflatten(2, (-1, 2)))
        pairs.mul_(turns)
        if heads.dtype != torch.float32:
            heads.copy_(torch.view_as_real(pairs).flatten(2))


class FloatLayer:
    """A `Layer` of PyTorch's operations, on any device."""

    def __init__(self, weights: LayerWeights) -> None:
        self._weights = weights
        self._attention_norm = RmsNorm(weights.attention_norm)
        self._head_norm = None if weights.head_norm is None else RmsNorm(weights.head_norm)
        self._mlp_norm = RmsNorm(weights.mlp_norm)

    def qkv(self, x: Tensor, turns: Tensor) -> Tensor:
        """See `Layer`."""
        qkv = functional.linear(self._attention_norm(x), *self._weights.qkv)
        qkv = qkv.unflatten(1, (-1, self._weights.head_dim))
        turning = qkv[:, : self._weights.num_turned]
        if self._head_norm is not None:
            turning.copy_(self._head_norm(turning))
        Rotation.turn(turning, turns)
        return qkv

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """See `Layer`."""
        x = x + functional.linear(attended, *self._weights.out)
        gate_up = functional.linear(self._mlp_norm(x), *self._weights.gate_up)
        gate, up = gate_up.chunk(2, dim=1)
        return x + functional.linear(functional.silu(gate).mul_(up), *self._weights.down)
