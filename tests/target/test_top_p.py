import pytest
import torch
import vllm.v1.sample.ops.topk_topp_sampler as upstream
from torch import Tensor
from vllm.platforms import current_platform

from specray.target import top_p

pytestmark = pytest.mark.skipif(not current_platform.is_cpu(), reason="for CPUs")
VOCAB_SIZE = 5000
NO_K = VOCAB_SIZE  # as vLLM says it


def make_logits(num_rows: int, spread: float) -> Tensor:
    return spread * torch.randn(num_rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(0))


def check(logits: Tensor, k: list[int] | None, p: list[float] | None) -> None:
    """Both keep the same tokens, with the same logits."""
    ks = None if k is None else torch.tensor(k, dtype=torch.int32)
    ps = None if p is None else torch.tensor(p)
    expected = upstream.apply_top_k_top_p_pytorch(logits.clone(), ks, ps, allow_cpu_sync=True)
    assert torch.equal(top_p.apply_top_k_top_p(logits.clone(), ks, ps), expected)


@pytest.mark.parametrize("spread", [0.1, 1.0, 4.0, 20.0])  # 0.1: nearly all tokens are needed
@pytest.mark.parametrize("p", [1e-9, 1e-6, 0.3, 0.9, 0.999])  # 1 - 1e-9 is 1
def test_top_p_keeps_what_vllm_keeps(spread: float, p: float) -> None:
    check(make_logits(3, spread), None, [p] * 3)


@pytest.mark.parametrize("spread", [0.1, 4.0])
@pytest.mark.parametrize("k", [1, 40, 1023, 1024, 1025, 3000, NO_K])
@pytest.mark.parametrize("p", [0.5, 0.95])
def test_top_k_comes_before_top_p(spread: float, k: int, p: float) -> None:
    check(make_logits(2, spread), [k] * 2, [p] * 2)


def test_each_row_has_its_own() -> None:
    logits = torch.cat([make_logits(3, 0.1), make_logits(3, 4.0)])
    check(logits, [NO_K, 3000, 7] * 2, [0.9, 0.5, 0.999] * 2)


@pytest.mark.parametrize("spread", [0.1, 4.0, 20.0])  # at 20 few tokens sum to 1 but for rounding
@pytest.mark.parametrize("vocab_size", [VOCAB_SIZE, 1024])
def test_rows_without_either_stay_as_they_are(spread: float, vocab_size: int) -> None:
    logits = make_logits(9, spread)[:, :vocab_size].contiguous()
    p = torch.tensor([1.0, 0.5, 1.0] * 3)
    cut = top_p.apply_top_k_top_p(logits.clone(), torch.tensor([vocab_size] * 9), p)
    assert torch.equal(cut[p == 1], logits[p == 1])
    assert cut[p < 1].isinf().any(dim=1).all()


@pytest.mark.parametrize("offset", [0.0, 25.0, 1000.0])
@pytest.mark.parametrize("p", [0.99, 0.9999, 0.99999])
def test_a_border_far_out_is_where_vllm_has_it(offset: float, p: float) -> None:
    check(make_logits(16, 8.0) + offset, None, [p] * 16)


@pytest.mark.parametrize("k", [17, 40])
def test_top_k_alone_in_a_batch_with_top_p(k: int) -> None:
    check(make_logits(4, 20.0), [k] * 4, [1.0, 0.9] * 2)


def test_top_k_alone() -> None:
    check(make_logits(3, 1.0), [1, 5, 2000], None)


def test_those_as_likely_as_the_last_one_of_top_k_stay() -> None:
    logits = torch.zeros(2, VOCAB_SIZE)
    logits[:, 7] = 20.0
    logits[1, 100:200] = 10.0
    cut = top_p.apply_top_k_top_p(logits.clone(), torch.tensor([2, 2]), torch.tensor([1.0, 1.0]))
    assert torch.isfinite(cut).sum(dim=1).tolist() == [VOCAB_SIZE, 101]


def test_a_vocabulary_smaller_than_what_is_looked_at() -> None:
    logits = make_logits(2, 3.0)[:, :50].contiguous()
    check(logits, None, [0.4, 0.99])


def test_forbidden_tokens_stay_forbidden() -> None:
    logits = make_logits(2, 1.0)
    logits[:, 10:] = -torch.inf
    check(logits, None, [0.9, 1.0 - 1e-6])
    whole = top_p.apply_top_k_top_p(logits.clone(), None, torch.tensor([1.0, 1.0]))
    assert torch.equal(whole, logits)


def test_the_sampler_and_the_verification_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import vllm.v1.sample.rejection_sampler as rejection_sampler

    for module in (upstream, rejection_sampler):
        monkeypatch.setattr(module, "apply_top_k_top_p", module.apply_top_k_top_p)
    top_p.install()
    logits, p = make_logits(1, 4.0), torch.tensor([0.5])
    _, cut = upstream.TopKTopPSampler("processed_logits").forward_cpu(logits, {}, None, p)
    assert torch.isinf(cut).any()
    assert rejection_sampler.apply_top_k_top_p is top_p.apply_top_k_top_p
    assert upstream.apply_top_k_top_p is top_p.apply_top_k_top_p
