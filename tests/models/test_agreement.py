from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specray.errors import InvalidConfigError
from specray.models.agreement import MAX_DEPTH, chain_rates, measure
from tests.target.tiny_model import EOS, make_tokenizer

PROMPTS = ["Why is the sky blue?", "Count to ten."]


def save_model(folder: Path, seed: int, num_layers: int = 1) -> str:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=num_layers,
        num_attention_heads=2,
        max_position_embeddings=256,
        initializer_range=0.3,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return str(folder)


class Served:
    """A draft that takes a second for each token of its prompt."""

    def __init__(self, head: Sequence[int] | None = None) -> None:
        self.head_token_ids = None if head is None else torch.tensor(head)

    def token_s(self, prompt: Sequence[int]) -> float:
        return float(len(prompt))


def ignore(_: str) -> None: ...


def test_a_draft_equal_to_the_target_is_always_right(tmp_path: Path) -> None:
    told: list[str] = []
    model = save_model(tmp_path / "model", seed=0)

    agreement = measure(model, model, PROMPTS, 60.0, Served(), told.append)

    assert agreement.greedy == pytest.approx([1.0] * MAX_DEPTH)
    assert agreement.sampled == pytest.approx([1.0] * MAX_DEPTH, abs=1e-3)
    assert agreement.num_tokens > 0
    assert agreement.target_token_s > 0
    assert len(agreement.verification_s) == MAX_DEPTH
    assert all(seconds > 0 for seconds in agreement.verification_s)
    assert agreement.draft_token_s == min(map(len, PROMPTS))  # of which a character is a token
    assert len(told) == len(PROMPTS)


def test_an_unrelated_draft_is_mostly_wrong(tmp_path: Path) -> None:
    target = save_model(tmp_path / "target", seed=0)
    draft = save_model(tmp_path / "draft", seed=1)

    agreement = measure(target, draft, PROMPTS, 60.0, Served(), ignore)

    assert agreement.greedy[0] < 0.4
    assert 0.05 < agreement.sampled[0] < 0.7


def test_a_head_of_few_tokens_proposes_no_others(tmp_path: Path) -> None:
    model = save_model(tmp_path / "model", seed=0)
    half, none_of_text = range(1, 96, 2), [EOS]

    halved = measure(model, model, PROMPTS[:1], 0.0, Served(half), ignore)
    idle = measure(model, model, PROMPTS[:1], 0.0, Served(none_of_text), ignore)

    assert 0.1 < halved.sampled[0] < 0.9
    assert halved.greedy[0] < 1
    assert idle.sampled[0] < 0.1


def test_the_tokens_of_a_head_share_all_of_the_probability(tmp_path: Path) -> None:
    target = save_model(tmp_path / "target", seed=0)
    draft = save_model(tmp_path / "draft", seed=1)

    whole, odd, even = (
        measure(target, draft, PROMPTS[:1], 0.0, Served(head), ignore)
        for head in (None, range(1, 96, 2), range(0, 96, 2))
    )

    # Each token is in one of the halves, where it is likelier than in the whole.
    assert odd.sampled[0] + even.sampled[0] > 1.1 * whole.sampled[0]


def test_the_fastest_pass_of_one_request_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = []
    seconds = iter([[0.1 * i for i in range(1, 10)], [0.2] * 9])

    def fake_times(_: object, prompt_ids: torch.Tensor, next_ids: torch.Tensor) -> list[float]:
        shapes.append((prompt_ids.shape, next_ids.shape))
        return next(seconds)

    monkeypatch.setattr("specray.models.agreement.pass_times", fake_times)
    model = save_model(tmp_path / "model", seed=0)
    agreement = measure(model, model, PROMPTS, 60.0, Served(), ignore)

    assert shapes == [((1, len(prompt)), (1, MAX_DEPTH + 1)) for prompt in PROMPTS]
    assert agreement.target_token_s == pytest.approx(0.1)
    assert agreement.verification_s == pytest.approx([0.2] * MAX_DEPTH)


def test_no_prompt_is_begun_after_the_budget(tmp_path: Path) -> None:
    told: list[str] = []
    model = save_model(tmp_path / "model", seed=0)

    measure(model, model, PROMPTS, 0.0, Served(), told.append)

    assert len(told) == 1


def test_a_model_that_can_not_be_loaded_is_a_config_error(tmp_path: Path) -> None:
    model = save_model(tmp_path / "model", seed=0)

    with pytest.raises(InvalidConfigError, match="none can't be loaded"):
        measure(model, str(tmp_path / "none"), PROMPTS, 0.0, Served(), ignore)


def test_the_rate_of_a_place_is_conditional_on_those_before() -> None:
    answers = [torch.tensor([1.0, 1.0, 0.0, 1.0]), torch.tensor([0.5])]

    rates = chain_rates(answers)

    # Of 5 starts, 3.5 are accepted; of 3 chains of two, 1; of 2 chains of three, none.
    assert rates == pytest.approx([0.7, (1 / 3) / 0.7, 0.0, 0.0])


def test_no_answers_have_no_rates() -> None:
    assert chain_rates([]) == []
