from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import vllm.utils.cpu_triton_utils as cpu_triton_utils
import vllm.v1.sample.rejection_sampler as upstream
from torch import Tensor
from vllm.platforms import current_platform
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.logits_processor.builtin import (
    LogitBiasLogitsProcessor,
    MinTokensLogitsProcessor,
)
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

from specray.target import greedy

pytestmark = pytest.mark.skipif(not current_platform.is_cpu(), reason="for CPUs")
VOCAB_SIZE = 40
VERIFY, CHOOSE = upstream.RejectionSampler.forward, Sampler.forward
CPU = torch.device("cpu")


def settings(**changes: Any) -> SamplingMetadata:
    plain = SamplingMetadata(
        temperature=None,
        all_greedy=True,
        all_random=False,
        top_p=None,
        top_k=None,
        generators={},
        max_num_logprobs=None,
        no_penalties=True,
        prompt_token_ids=None,
        frequency_penalties=torch.empty(0),
        presence_penalties=torch.empty(0),
        repetition_penalties=torch.empty(0),
        output_token_ids=[],
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=LogitsProcessors(),
    )
    return replace(plain, **changes)


def sampler() -> upstream.RejectionSampler:
    return upstream.RejectionSampler(Sampler())


def accepted(output: Any) -> list[list[int]]:
    assert output.logprobs_tensors is None
    assert output.sampled_token_ids.dtype == torch.int32
    return upstream.RejectionSampler.parse_output(output.sampled_token_ids, VOCAB_SIZE)[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_verifies_as_vllm_does_also_where_tokens_are_equally_likely(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    kernel = cpu_triton_utils.rejection_greedy_sample_kernel  # as vLLM's CPU model runner does
    monkeypatch.setattr(upstream, "rejection_greedy_sample_kernel", kernel)
    generator = np.random.default_rng(0)
    for depths in ([3], [0, 2, 5], [1, 0, 0, 4], [5] * 8):
        rows = sum(depths) + len(depths)
        # Few values, so that nearly every row has several largest.
        logits = torch.tensor(generator.integers(0, 4, (rows, VOCAB_SIZE))).to(dtype)
        likeliest = logits.float().argmax(dim=-1).tolist()
        drafts, start = [], 0
        for depth in depths:  # each draft token is right with a probability of 0.7
            right = generator.random(depth) < 0.7
            drafts.append(np.where(right, likeliest[start : start + depth], 7).tolist())
            start += depth + 1
        metadata = SpecDecodeMetadata.make_dummy(drafts, CPU)
        metadata.target_logits_indices, metadata.bonus_logits_indices = places(depths)

        ours = greedy.verify(sampler(), metadata, None, logits.clone(), settings())
        theirs = VERIFY(sampler(), metadata, None, logits.clone(), settings())

        assert accepted(ours) == accepted(theirs)
        assert {len(tokens) for tokens in accepted(ours)} > {1} or max(depths) < 5


def places(depths: list[int]) -> tuple[Tensor, Tensor]:
    """The rows of draft tokens, and the last one of each request."""
    ends = np.cumsum([depth + 1 for depth in depths])
    bonus = torch.tensor(ends - 1, dtype=torch.int32)
    rows = sorted(set(range(int(ends[-1]))) - set(bonus.tolist()))
    return torch.tensor(rows, dtype=torch.int32), bonus


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_first_of_the_likeliest(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randint(0, 4, (200, 1001), generator=generator).to(dtype)

    assert greedy.likeliest(logits).tolist() == logits.float().numpy().argmax(1).tolist()


def processor(cls: type, state: str) -> LogitsProcessors:
    found = cls(SimpleNamespace(), CPU, False)  # vLLM's signature
    setattr(found, state, {0: {1: 2.0}})
    return LogitsProcessors([found])


@pytest.mark.parametrize(
    "changes",
    [
        {"all_greedy": False},
        {"max_num_logprobs": 0},
        {"logprob_token_ids": {0: [1]}},
        {"no_penalties": False},
        {"bad_words_token_ids": {0: [[1]]}},
        {"allowed_token_ids_mask": torch.zeros(1, VOCAB_SIZE)},
        {"thinking_budget_state_holder": SimpleNamespace(has_tracked_requests=lambda: True)},
        {"logitsprocs": processor(LogitBiasLogitsProcessor, "biases")},
        {"logitsprocs": processor(MinTokensLogitsProcessor, "min_toks")},
        {"logitsprocs": LogitsProcessors([SimpleNamespace(is_argmax_invariant=lambda: False)])},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_whatever_else_decides_is_left_to_vllm(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    monkeypatch.setattr(greedy, "_upstream_verify", lambda *_: "theirs")
    monkeypatch.setattr(greedy, "_upstream_choose", lambda *_: "theirs")
    metadata = SpecDecodeMetadata.make_dummy([[1]], CPU)

    assert (
        greedy.verify(sampler(), metadata, None, torch.ones(2, VOCAB_SIZE), settings(**changes))
        == "theirs"
    )


def test_synthetic_acceptance_is_left_to_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greedy, "_upstream_verify", lambda *_: "theirs")
    synthetic = sampler()
    synthetic.synthetic_mode = True
    metadata = SpecDecodeMetadata.make_dummy([[1]], CPU)
    logits = torch.ones(2, VOCAB_SIZE)

    assert greedy.verify(synthetic, metadata, None, logits, settings()) == "theirs"


def test_idle_processors_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greedy, "_upstream_verify", lambda *_: "theirs")
    monkeypatch.setattr(greedy, "_upstream_choose", lambda *_: "theirs")
    metadata = SpecDecodeMetadata.make_dummy([[1]], CPU)
    metadata.target_logits_indices, metadata.bonus_logits_indices = places([1])
    idle = LogitsProcessors(
        [
            cls(SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=2)), CPU, False)
            for cls in (LogitBiasLogitsProcessor, MinTokensLogitsProcessor)
        ]
    )
    logits = torch.zeros(2, VOCAB_SIZE)
    logits[0, 1] = logits[1, 3] = 1

    holder = SimpleNamespace(has_tracked_requests=lambda: False)
    idling = settings(logitsprocs=idle, thinking_budget_state_holder=holder)

    ours = greedy.verify(sampler(), metadata, None, logits, idling)

    assert accepted(ours) == [[1, 3]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_chooses_as_vllm_does_where_nothing_is_verified(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randint(0, 4, (50, VOCAB_SIZE), generator=generator).to(dtype)

    ours = greedy.choose(Sampler(), logits.clone(), settings())
    theirs = CHOOSE(Sampler(), logits.clone(), settings())

    assert torch.equal(ours.sampled_token_ids, theirs.sampled_token_ids)
    assert ours.sampled_token_ids.dtype == theirs.sampled_token_ids.dtype
    assert ours.logprobs_tensors is None


def test_vllm_calls_them_once_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream.RejectionSampler, "forward", VERIFY)
    monkeypatch.setattr(Sampler, "forward", CHOOSE)
    monkeypatch.setattr(Sampler, "greedy_sample", staticmethod(Sampler.greedy_sample))
    for name in ("_upstream_verify", "_upstream_choose"):
        monkeypatch.setattr(greedy, name, None)  # so that only ours can answer
    metadata = SpecDecodeMetadata.make_dummy([[1]], CPU)
    metadata.target_logits_indices, metadata.bonus_logits_indices = places([1])
    logits = torch.zeros(2, VOCAB_SIZE)
    logits[0, 1] = logits[1, 3] = 1
    greedy.install()

    assert accepted(sampler()(metadata, None, logits, settings())) == [[1, 3]]
    assert Sampler()(logits, settings()).sampled_token_ids.tolist() == [[1], [3]]
    assert Sampler.forward is greedy.choose  # whose answers are vLLM's own
