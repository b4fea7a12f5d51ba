"""vLLM generates what our own generator does."""

from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from specray.distill.generation import SampleRequest
from specray.distill.row_cache import GROUPED_ATTENTION
from specray.distill.transformers_engine import TransformersGenerator
from specray.errors import InvalidConfigError


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("Engine core initialization failed."),  # all that is told of its process
        ValueError("No available memory for the cache blocks."),
        torch.OutOfMemoryError("CUDA out of memory"),
    ],
)
def test_what_keeps_vllm_from_starting_is_said(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    from specray.distill import vllm_engine

    monkeypatch.setattr(vllm_engine, "LLM", Mock(side_effect=error))

    with pytest.raises(InvalidConfigError, match="use a larger device") as raised:
        vllm_engine.VllmGenerator("tiny", frozenset({0}), max_top_k=5, dtype="float32")

    assert str(error) in str(raised.value)


@pytest.mark.e2e
@pytest.mark.timeout(900)
# vLLM leaves files open when its engine goes away.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_both_generators_say_the_same(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    from specray.distill.vllm_engine import VllmGenerator

    model = AutoModelForCausalLM.from_pretrained(
        target, dtype=torch.float32, attn_implementation=GROUPED_ATTENTION
    )
    requests = [SampleRequest((5, 6, i), i, 12, 0.0) for i in range(7, 12)]

    ours = TransformersGenerator(model, frozenset({0})).generate(requests, top_k=5)
    vllm = VllmGenerator(str(target), frozenset({0}), max_top_k=5, dtype="float32")
    theirs = vllm.generate(requests, top_k=5)

    for one, other in zip(ours, theirs, strict=True):
        assert one.token_ids.tolist() == other.token_ids.tolist()
        assert np.array_equal(one.top_ids, other.top_ids)
        assert np.allclose(one.top_logprobs, other.top_logprobs, atol=5e-3)
