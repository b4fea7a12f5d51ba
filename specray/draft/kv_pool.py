"""The memory of all sessions' keys and values: a fixed pool, handed out in blocks."""

from typing import NamedTuple

import torch

BLOCK_TOKENS = 16


class KvLayout(NamedTuple):
    """What one token's keys and values look like, the same in all layers."""

    num_layers: int
    num_heads: int
    head_dim: int


class KvPool:
    """Token slots for keys and values; a session holds as many blocks of them as it needs.

    Block 0 belongs to nobody and stays zero: it fills the columns of a batch that a short session
    leaves empty. Free blocks are zero too: attention masks what it must not see by 0 * value, so
    another session's NaN would spread.
    """

    def __init__(
        self, layout: KvLayout, num_tokens: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        num_blocks = num_tokens // BLOCK_TOKENS
        shape = (layout.num_layers, (num_blocks + 1) * BLOCK_TOKENS, 2, *layout[1:])
        self.capacity = num_blocks * BLOCK_TOKENS
        self.kv = torch.zeros(shape, dtype=dtype, device=device)  # [layers, slots, 2, heads, dim]
        self._free = list(range(num_blocks, 0, -1))

    def grow(self, blocks: list[int], num_tokens: int) -> bool:
        """Adds blocks until `num_tokens` fit; takes none and returns False if too few are left."""
        num_missing = -(-num_tokens // BLOCK_TOKENS) - len(blocks)
        if num_missing > len(self._free):
            return False
        blocks += (self._free.pop() for _ in range(num_missing))
        return True

    def release(self, blocks: list[int]) -> None:
        """Takes all of a session's blocks back."""
        slots = self.slots(blocks, 0, len(blocks) * BLOCK_TOKENS)
        self.kv.index_fill_(1, torch.tensor(slots, dtype=torch.long, device=self.kv.device), 0.0)
        self._free += blocks
        blocks.clear()

    @staticmethod
    def slots(blocks: list[int], start: int, stop: int) -> list[int]:
        """The slots of a session's tokens from `start` to before `stop`."""
        return [
            blocks[position // BLOCK_TOKENS] * BLOCK_TOKENS + position % BLOCK_TOKENS
            for position in range(start, stop)
        ]
