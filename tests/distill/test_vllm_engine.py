"""vLLM generates what our own generator does."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from specray.distill.generation import SampleRequest
from specray.distill.row_cache import GROUPED_ATTENTION
from specray.distill.transformers_engine import TransformersGenerator

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(900),
    # vLLM leaves files open when its engine goes away.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


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
