"""A small causal language model, reached through transformers' cache and attention interface."""

import inspect
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from specray.draft.attention import CachedRow, NewTokens
from specray.draft.batch_cache import BatchCache
from specray.draft.kv_pool import KvLayout
from specray.errors import InvalidConfigError
from specray.models.llama_like import has_full_attention


class CausalLm:
    """Any decoder whose layers all attend to everything before."""

    def __init__(self, model: PreTrainedModel, head_token_ids: Tensor | None = None) -> None:
        """Checks that the model fits our cache.

        Args:
            model: the model.
            head_token_ids: the tokens that its head is for, if it has been trimmed.

        Raises:
            InvalidConfigError: It is not a decoder with full attention in every layer.
        """
        self._model = model.eval()
        self._check_interface()
        text_config = model.config.get_text_config(decoder=True)
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        self.vocab_size: int = model.get_input_embeddings().num_embeddings
        self.max_positions: int = text_config.max_position_embeddings
        self.layout = self._probe_layout()
        self.copies_rows = True
        self.head_token_ids = None if head_token_ids is None else head_token_ids.to(self.device)

    def make_cache(self, rows: Sequence[CachedRow]) -> BatchCache:
        """The keys and values of a batch, for the passes of one proposal."""
        return BatchCache(rows)

    @torch.inference_mode()
    def next_logits(self, new: NewTokens, cache: BatchCache) -> Tensor:
        """See `LanguageModel`."""
        new = cache.start_pass(new)
        shape = (len(new.counts), -1)
        output = self._model(
            input_ids=new.token_ids.view(shape),
            attention_mask=cache.mask.unsqueeze(1),
            position_ids=new.positions.clamp(min=0).view(shape),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=max(new.num_scored, default=1),
        )
        if not new.num_scored:
            return output.logits[:, -1]
        rows = zip(output.logits, new.num_scored, strict=True)
        return torch.cat([row[-num:] for row, num in rows])

    def _check_interface(self) -> None:
        name = type(self._model).__name__
        parameters = inspect.signature(self._model.forward).parameters
        missing = {"position_ids", "past_key_values", "logits_to_keep"} - parameters.keys()
        if missing or self._model.config.is_encoder_decoder:
            raise InvalidConfigError(
                f"draft model {name} can't be a draft: its forward lacks {sorted(missing)}; "
                "take a decoder with rotary or learned positions (Llama, Qwen, GPT-2, OPT, ...)"
            )
        if self._model.config._attn_implementation != "sdpa":
            raise InvalidConfigError(f"draft model {name} has no `sdpa` attention; take another")
        if not has_full_attention(self._model):
            raise InvalidConfigError(
                f"draft model {name} has layers without full attention (sliding window, linear); "
                "take one that attends to all tokens in every layer"
            )

    @torch.inference_mode()
    def _probe_layout(self) -> KvLayout:
        """Learns the shape of keys and values from one token's pass."""
        cache = DynamicCache()
        self._model(
            input_ids=torch.zeros((1, 1), dtype=torch.long, device=self.device),
            past_key_values=cache,
            use_cache=True,
        )
        shapes = {
            tuple(states.shape) for layer in cache.layers for states in (layer.keys, layer.values)
        }
        if len(shapes) != 1:
            raise InvalidConfigError(
                f"draft model {type(self._model).__name__} has keys and values of several shapes "
                f"{sorted(shapes)}; take one with the same heads in all layers"
            )
        _, num_heads, _, head_dim = shapes.pop()
        return KvLayout(len(cache.layers), num_heads, head_dim)
