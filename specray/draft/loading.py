"""From a folder to a draft's model: its weights' type, its head, and who computes its layers."""

from collections.abc import Collection

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from specray.config import ModelDraftConfig
from specray.draft import int8
from specray.draft.causal_lm import CausalLm
from specray.draft.language_model import LanguageModel
from specray.draft.llama import LlamaPass
from specray.draft.trimmed_head import read_head_token_ids, trim_head
from specray.errors import InvalidConfigError
from specray.models import cuda
from specray.models.llama_like import is_llama_like
from specray.models.unreadable import UNREADABLE


def load_language_model(
    path: str, config: ModelDraftConfig, allowed: Collection[int] | None = None
) -> LanguageModel:
    """Loads the draft model from a folder or hub id.

    Args:
        path: where the model lies; `config.model` with its shorthand resolved.
        config: device, data type, quantization and head. What is "auto" becomes bfloat16 on a
            GPU and float32 with int8 weights on a CPU.
        allowed: the only tokens that it may propose; None allows all.

    Raises:
        InvalidConfigError: It can't be loaded so, or can't be a draft.
    """
    device = config.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    cuda.prepare(device)
    dtype = config.dtype
    if dtype == "auto":
        dtype = "bfloat16" if device == "cuda" else "float32"
    is_int8 = _is_int8(config, device, dtype)
    model = _load(path, dtype, config.trust_remote_code)
    vocab_size = model.get_input_embeddings().num_embeddings
    head_token_ids = read_head_token_ids(path, vocab_size, config.head_tokens)
    head_token_ids = _restricted(head_token_ids, allowed)
    if head_token_ids is not None:
        trim_head(model, head_token_ids)
    return _finish(model.to(device), head_token_ids, is_int8=is_int8)


def _restricted(
    token_ids: torch.Tensor | None, allowed: Collection[int] | None
) -> torch.Tensor | None:
    if allowed is None:
        return token_ids
    if token_ids is None:
        return torch.tensor(sorted(allowed))
    kept = [token_id for token_id in token_ids.tolist() if token_id in allowed]
    return torch.tensor(kept or sorted(allowed))


def _finish(
    model: PreTrainedModel, head_token_ids: torch.Tensor | None, *, is_int8: bool
) -> LanguageModel:
    if is_llama_like(model):
        return LlamaPass(model, head_token_ids, is_int8=is_int8)
    if is_int8:
        int8.quantize(model)
    return CausalLm(model, head_token_ids)


def _is_int8(config: ModelDraftConfig, device: str, dtype: str) -> bool:
    is_possible = device == "cpu" and dtype == "float32"
    if config.quantization == "int8" and not is_possible:
        raise InvalidConfigError(
            f"draft.model.quantization int8 is for device cpu and dtype float32, not for {device} "
            f"and {dtype}; use `auto`"
        )
    return is_possible and config.quantization != "none"


def _load(path: str, dtype: str, trust_remote_code: bool) -> PreTrainedModel:
    try:
        return AutoModelForCausalLM.from_pretrained(
            path,
            dtype=getattr(torch, dtype),
            attn_implementation="sdpa",
            trust_remote_code=trust_remote_code,
        )
    except UNREADABLE as error:
        raise InvalidConfigError(f"draft model {path} can't be loaded: {error}") from error
