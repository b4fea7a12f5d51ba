"""Our pass over Llama-like models against transformers' own."""

import copy

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    OlmoConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from specray.draft.attention import CachedRow, NewTokens
from specray.draft.batch_cache import BatchCache
from specray.draft.causal_lm import CausalLm
from specray.draft.language_model import LanguageModel
from specray.draft.llama import LlamaPass

SHAPE = {
    "vocab_size": 60,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "attn_implementation": "sdpa",
}
LLAMA3_ROTATION = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
FITTING = {
    "llama": LlamaConfig(**SHAPE),
    "tied": LlamaConfig(**SHAPE, tie_word_embeddings=True),
    "many key heads": LlamaConfig(**{**SHAPE, "num_key_value_heads": 6}),
    "wide heads": LlamaConfig(**SHAPE, head_dim=16),
    "biases": LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True),
    "llama3 rotation": LlamaConfig(**SHAPE, rope_parameters=LLAMA3_ROTATION),
    "mistral": MistralConfig(**SHAPE, sliding_window=None),
    "qwen2": Qwen2Config(**SHAPE),
    "qwen3": Qwen3Config(**SHAPE, head_dim=16),
}
ROTATION = {"rope_theta": 10000.0, "factor": 2.0}
FOREIGN = {
    "other norms": OlmoConfig(**SHAPE),
    "sliding window": MistralConfig(**SHAPE, sliding_window=8),
    "other activation": LlamaConfig(**SHAPE, hidden_act="gelu"),
    "rotation by length": LlamaConfig(
        **SHAPE, rope_parameters={"rope_type": "dynamic", **ROTATION}
    ),
    "yarn": LlamaConfig(**SHAPE, rope_parameters={"rope_type": "yarn", **ROTATION}),
}


def random_model(config: PreTrainedConfig, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    torch.manual_seed(5)
    model = AutoModelForCausalLM.from_config(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "norm" in name:
            torch.nn.init.normal_(parameter, mean=0.8, std=0.3)
    return model.to(dtype)


def run(model: LanguageModel, *, is_batched: bool = False) -> list[torch.Tensor]:
    """A prefill, and passes over a ragged batch, over alike rows, and over branches of one."""
    num_layers, num_heads, dim = model.layout
    rows = [
        CachedRow(torch.empty(num_layers, 2 * num_heads, 20, dim, dtype=model.dtype), 0, stop)
        for stop in (12, 2)
    ]
    token_ids = torch.randint(60, (20,), generator=torch.Generator().manual_seed(2))
    make_cache = BatchCache if is_batched else model.make_cache
    prefill = make_cache(rows[:1])
    new = NewTokens(token_ids[:9], torch.arange(9), [9], [9])
    passes = [model.next_logits(new, prefill)]
    prefill.store()
    rows[0] = rows[0]._replace(num_cached=9)
    cache = make_cache(rows)
    new = NewTokens(token_ids[9:12], torch.tensor([9, 10, 0]), [2, 1], [11, 1])
    passes.append(model.next_logits(new, cache))
    passes.append(model.next_logits(new.followed_by(token_ids[12:14]), cache))
    cache.store()
    rows = [rows[0]._replace(num_cached=10), rows[1]._replace(num_cached=1, stop=3)]
    cache = make_cache(rows)
    new = NewTokens(token_ids[14:18], torch.tensor([10, 11, 1, 2]), [2, 2], [12, 3])
    passes.append(model.next_logits(new, cache))
    cache.store()
    tails = [torch.empty(num_layers, 2 * num_heads, 2, dim, dtype=model.dtype) for _ in range(2)]
    rows = [
        CachedRow(rows[0].states, num_shared, num_shared + 2, tail, num_shared)
        for tail, num_shared in zip(tails, (12, 10), strict=True)
    ]
    cache = make_cache(rows)
    new = NewTokens(token_ids[18:], torch.tensor([12, 10]), [1, 1], [13, 11])
    passes.append(model.next_logits(new, cache))
    passes.append(model.next_logits(new.followed_by(token_ids[:2]), cache))
    return passes


@pytest.mark.parametrize("name", FITTING)
def test_logits_equal_those_of_transformers(name: str) -> None:
    model = random_model(FITTING[name])
    expected = run(CausalLm(copy.deepcopy(model)))
    torch.testing.assert_close(run(LlamaPass(model)), expected, rtol=1e-4, atol=1e-4)


def test_a_batch_in_one_tensor_gives_the_same() -> None:
    model = LlamaPass(random_model(FITTING["qwen2"]))
    torch.testing.assert_close(run(model, is_batched=True), run(model), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", FITTING)
def test_int8_layers_one_by_one_give_the_same(name: str) -> None:
    model = LlamaPass(random_model(FITTING[name]), is_int8=True)
    torch.testing.assert_close(run(model, is_batched=True), run(model), rtol=1e-2, atol=1e-2)


def test_int8_layers_that_are_not_alike_are_refused() -> None:
    model = random_model(FITTING["llama"])
    model.model.layers[1].post_attention_layernorm.variance_epsilon = 0.5
    with pytest.raises(AssertionError):
        LlamaPass(model, is_int8=True)


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_half_precision_stays_close_to_transformers(name: str) -> None:
    model = random_model(FITTING[name], torch.bfloat16)
    exact = run(CausalLm(random_model(FITTING[name])))
    theirs, ours = run(CausalLm(copy.deepcopy(model))), run(LlamaPass(model))
    for logits, their_logits, our_logits in zip(exact, theirs, ours, strict=True):
        assert our_logits.dtype == torch.bfloat16
        their_error = (their_logits - logits).norm()
        assert (our_logits - logits).norm() < 1.5 * their_error


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("name", FITTING)
def test_int8_weights_say_nearly_the_same(
    name: str, num_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: num_threads)
    model = random_model(FITTING[name])
    exact = LlamaPass(copy.deepcopy(model))
    rounded = LlamaPass(model, is_int8=True)
    agree = total = 0
    for exact_logits, logits in zip(run(exact), run(rounded), strict=True):
        agree += int((exact_logits.argmax(1) == logits.argmax(1)).sum())
        total += len(logits)
        assert (logits - exact_logits).norm() < 0.05 * exact_logits.norm()
    assert agree > 0.7 * total
