"""Keys and values of a batch whose rows all grow by the same column, and attention over them."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.cache_utils import Cache

GROUPED_ATTENTION = "specray_grouped"


class _Sizes(NamedTuple):
    layers: int
    heads: int
    dim: int


def _sizes(model: Any) -> _Sizes:
    config = model.config.get_text_config(decoder=True)
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return _Sizes(config.num_hidden_layers, heads, dim)


def bytes_per_column(model: Any) -> int:
    """What a `RowCache` takes for one column of one row."""
    layers, heads, dim = _sizes(model)
    return int(layers * 2 * heads * dim * model.dtype.itemsize)


class RowCache(Cache):
    """Room for all columns from the start, so that a step copies nothing but its own."""

    def __init__(self, model: Any, num_rows: int, num_columns: int) -> None:
        super().__init__(layers=[])
        layers, heads, dim = _sizes(model)
        shape = (layers, 2, num_rows, heads, num_columns, dim)
        self._kv = torch.zeros(shape, dtype=model.dtype, device=model.device)
        self.num_columns = num_columns
        self._rows = slice(0, num_rows)
        self._columns = torch.zeros(0, dtype=torch.long, device=model.device)
        self._stop = 0

    def select(self, first: int, count: int) -> None:
        """Sets the rows that the next passes are about."""
        self._rows = slice(first, first + count)

    def start_pass(self, columns: Tensor, stop: int) -> None:
        """Sets the columns that the next pass writes, [tokens]; it reads all before `stop`."""
        self._columns, self._stop = columns, stop

    def keep(self, rows: Tensor) -> None:  # [rows], bool
        """Gives up the memory of all other rows."""
        index = rows.nonzero().squeeze(1).to(self._kv.device)
        self._kv = self._kv.index_select(2, index)
        self._rows = slice(0, len(index))

    def update(
        self,
        key_states: Tensor,  # [rows, heads, queries, dim]
        value_states: Tensor,
        layer_idx: int,
        *_args: Any,
        **_kwargs: Any,
    ) -> tuple[Tensor, Tensor]:
        """Writes a layer's new keys and values; returns all that this pass reads."""
        keys, values = self._kv[layer_idx, :, self._rows]
        keys.index_copy_(2, self._columns, key_states)
        values.index_copy_(2, self._columns, value_states)
        return keys[:, :, : self._stop], values[:, :, : self._stop]

    def get_seq_length(self, _layer_idx: int = 0) -> int:
        """Columns that the running pass reads, less the ones it writes."""
        return self._stop - len(self._columns)


def _attend(
    _module: Any,
    query: Tensor,  # [rows, heads, queries, dim]
    key: Tensor,  # [rows, kv heads, columns, dim]
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **_kwargs: Any,
) -> tuple[Tensor, None]:
    """The heads that share keys become queries of one head: nothing is repeated in memory."""
    rows, heads, queries, dim = query.shape
    kv_heads = key.shape[1]
    group = heads // kv_heads
    grouped = query.reshape(rows, kv_heads, group * queries, dim)
    mask = None if attention_mask is None else attention_mask.repeat(1, 1, group, 1)
    out = scaled_dot_product_attention(grouped, key, value, attn_mask=mask, scale=scaling)
    return out.reshape(rows, heads, queries, dim).transpose(1, 2), None


AttentionInterface.register(GROUPED_ATTENTION, _attend)
