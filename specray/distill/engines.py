"""Which machine runs the target and the student, and in what precision."""

from importlib.util import find_spec
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from specray.distill.generation import Generator
from specray.distill.row_cache import GROUPED_ATTENTION
from specray.distill.settings import DistillSettings
from specray.distill.template import ChatTemplate, read_template
from specray.distill.transformers_engine import TransformersGenerator
from specray.errors import InvalidConfigError
from specray.models import cuda
from specray.models.unreadable import UNREADABLE

_AT_ONCE = {"cpu": 128, "cuda": 4096}  # texts: past these a step only gets longer


def fast_dtype(device: str) -> torch.dtype | None:
    """Bfloat16 where the hardware multiplies it; None where float32 is as fast."""
    if device == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else None
    native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if native else None


def load_model(path: str, device: str, dtype: torch.dtype, attention: str = "sdpa") -> Any:
    """A causal LM on its device.

    Raises:
        InvalidConfigError: it can't be loaded.
    """
    cuda.prepare(device)
    try:
        model = AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype, attn_implementation=attention
        )
    except UNREADABLE as error:
        raise InvalidConfigError(f"model {path} can't be loaded: {error}") from error
    return model.to(device)


def load_template(target: str) -> ChatTemplate:
    """The target's tokenizer and chat template.

    Raises:
        InvalidConfigError: there is no tokenizer, or it has no template.
    """
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(target)
    except UNREADABLE as error:
        raise InvalidConfigError(f"target {target}: no tokenizer: {error}") from error
    return read_template(tokenizer, _end_ids(target))


def _end_ids(target: str) -> list[int]:
    """The tokens that end an answer by the target's generation config, if it has one."""
    try:
        ids = GenerationConfig.from_pretrained(target).eos_token_id
    except OSError:
        return []
    return [ids] if isinstance(ids, int) else list(ids or ())


def make_generator(settings: DistillSettings, template: ChatTemplate) -> Generator:
    """The target, ready to generate.

    Raises:
        InvalidConfigError: vLLM is asked for and not installed, or the model can't be loaded, or
            has too few positions.
    """
    has_vllm = find_spec("vllm") is not None
    if settings.engine == "vllm" and not has_vllm:
        raise InvalidConfigError("--engine vllm: vLLM is not installed; use --engine transformers")
    _check_lengths(settings)
    dtype = fast_dtype(settings.device) or torch.float32
    # On a CPU vLLM's two processes and its threads, which spin, lose to one that is on its own.
    if settings.engine == "vllm" or (
        settings.engine == "auto" and has_vllm and settings.device == "cuda"
    ):
        from specray.distill.vllm_engine import VllmGenerator

        name = str(dtype).removeprefix("torch.")
        return VllmGenerator(settings.target, template.end_ids, settings.top_k, name)
    model = load_model(settings.target, settings.device, dtype, GROUPED_ATTENTION)
    return TransformersGenerator(model, template.end_ids, _AT_ONCE[settings.device])


def _check_lengths(settings: DistillSettings) -> None:
    """Refuses texts that the target has no positions for."""
    config: Any
    try:
        config = AutoConfig.from_pretrained(settings.target)
    except UNREADABLE:
        return  # vLLM may know models that transformers doesn't
    limit = getattr(config.get_text_config(decoder=True), "max_position_embeddings", None)
    if limit is not None and settings.max_prompt_tokens + settings.max_answer_tokens > limit:
        raise InvalidConfigError(
            f"--max-prompt-tokens {settings.max_prompt_tokens} and --max-answer-tokens "
            f"{settings.max_answer_tokens}: the target has {limit} positions; lower the former, or "
            "the latter in another folder"
        )
