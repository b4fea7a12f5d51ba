"""The memory of all sessions' keys and values."""

from typing import NamedTuple

import torch
from torch import Tensor

from specray.draft.sizes import CACHE_GROWTH
from specray.models.memory import is_shortage

BLOCK_TOKENS = 16


class KvLayout(NamedTuple):
    """What one token's keys and values look like, the same in all layers."""

    num_layers: int
    num_heads: int
    head_dim: int


class KvPool:
    """Hands out keys' and values' memory within a budget of tokens.

    A session's lies in one piece, so that attention reads it where it is: copying a batch together
    for each proposal would move more bytes than the proposal itself.
    """

    def __init__(
        self, layout: KvLayout, num_tokens: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.capacity = num_tokens // BLOCK_TOKENS * BLOCK_TOKENS
        self._layout = layout
        self._dtype = dtype
        self._device = device
        self._num_free = self.capacity

    def empty(self) -> Tensor:
        """The memory of a session without tokens: [layers, 2 * heads, 0, dim]."""
        return self._allocate(0)

    def grow(self, states: Tensor, num_tokens: int) -> Tensor | None:
        """Makes room for a session of `num_tokens`.

        Args:
            states: what the session holds, [layers, 2 * heads, tokens, dim]: the heads' keys, then
                their values. Returned as it is when it suffices; else it must not be used again.
            num_tokens: what must fit.

        Returns:
            The session's memory with what it held, or None if the budget does not allow it, or the
            device has less: until it is copied, what the session held is there twice.
        """
        held = states.shape[2]
        if num_tokens <= held:
            return states
        roomy = _in_blocks(int(num_tokens * CACHE_GROWTH)) if held else 0
        for wanted in (roomy, _in_blocks(num_tokens)):
            if 0 < wanted - held <= self._num_free and (grown := self._try(wanted)) is not None:
                self._num_free -= wanted - held
                grown[:, :, :held] = states
                return grown
        return None

    def shortage(self, states: Tensor, num_tokens: int) -> int:
        """Tokens that are not free but needed for what `grow` would do."""
        return max(0, _in_blocks(num_tokens) - states.shape[2] - self._num_free)

    def release(self, states: Tensor) -> None:
        """Takes a session's memory back."""
        self._num_free += states.shape[2]

    def _try(self, num_tokens: int) -> Tensor | None:
        try:
            return self._allocate(num_tokens)
        except (RuntimeError, MemoryError) as error:
            if not is_shortage(error):
                raise
            return None

    def _allocate(self, num_tokens: int) -> Tensor:
        num_layers, num_heads, head_dim = self._layout
        shape = (num_layers, 2 * num_heads, num_tokens, head_dim)
        return torch.empty(shape, dtype=self._dtype, device=self._device)


def _in_blocks(num_tokens: int) -> int:
    return -(-num_tokens // BLOCK_TOKENS) * BLOCK_TOKENS
