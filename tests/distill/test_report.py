from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from specray.distill.report import Agreement, compare, summarise, to_json, to_markdown
from specray.distill.shards import Answer
from specray.distill.student import cut


@pytest.fixture(scope="module")
def pair(target: Path) -> tuple[Any, Any]:
    models = [AutoModelForCausalLM.from_pretrained(target).eval() for _ in range(2)]
    return models[0], cut(models[1], [0, 1, 2, 4, 5])


def make_answer(is_greedy: bool) -> Answer:
    rng = np.random.default_rng(1)
    none = np.zeros((9, 0))
    return Answer(0, is_greedy, rng.integers(3, 70, 5), rng.integers(3, 70, 9), none, none)


def distributions(pair: tuple[Any, Any], allowed: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """What target and draft say before each token of the answer; one forward pass per token."""
    answer = make_answer(True)
    text = np.concatenate((answer.prompt_ids, answer.token_ids)).tolist()
    rows = []
    for model in pair:
        with torch.inference_mode():
            logits = [model(torch.tensor([text[:n]])).logits[0, -1] for n in range(5, 14)]
        rows.append(torch.stack(logits))
    outside = [i for i in range(rows[1].shape[1]) if i not in allowed]
    rows[1][:, outside] = -torch.inf
    return rows[0].softmax(-1), rows[1].softmax(-1)


def test_greedy_text_is_accepted_where_both_have_the_same_favourite(pair: tuple[Any, Any]) -> None:
    allowed = list(range(3, 60))
    p, q = distributions(pair, allowed)

    found = compare(*pair, make_answer(True), torch.tensor(allowed))

    assert found.accepted.tolist() == (p.argmax(-1) == q.argmax(-1)).double().tolist()
    assert 0 < found.accepted.sum() < 9  # so that the comparison can tell
    assert found.overlap == pytest.approx(torch.minimum(p, q).sum(-1).numpy(), abs=1e-5)


def test_sampled_text_is_accepted_as_rejection_sampling_does(pair: tuple[Any, Any]) -> None:
    answer = make_answer(False)
    p, q = distributions(pair, list(range(3, 60)))
    tokens = torch.tensor(answer.token_ids)[:, None]

    found = compare(*pair, answer, torch.arange(3, 60))

    wanted = (q.gather(1, tokens) / p.gather(1, tokens)).clamp(max=1)[:, 0]
    assert found.accepted == pytest.approx(wanted.numpy(), rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("is_greedy", [True, False])
def test_padding_of_one_vocabulary_changes_nothing(pair: tuple[Any, Any], is_greedy: bool) -> None:
    target, draft = pair
    padded = deepcopy(draft)
    padded.resize_token_embeddings(draft.config.vocab_size + 9, mean_resizing=False)
    answer, head = make_answer(is_greedy), torch.arange(3, 60)

    found, wanted = (compare(target, model, answer, head) for model in (padded, draft))

    assert found.accepted == pytest.approx(wanted.accepted, rel=1e-4, abs=1e-7)
    assert found.overlap == pytest.approx(wanted.overlap, rel=1e-4)


def test_a_token_that_the_draft_lacks_is_never_accepted(pair: tuple[Any, Any]) -> None:
    answer = make_answer(False)
    size = int(np.median(answer.token_ids))
    draft = deepcopy(pair[1])
    draft.resize_token_embeddings(size, mean_resizing=False)

    found = compare(pair[0], draft, answer, torch.arange(3, size))

    assert not found.accepted[answer.token_ids >= size].any()
    assert found.accepted[answer.token_ids < size].all()


def test_kinds_and_modes_are_told_apart_and_together() -> None:
    answers = [make_answer(greedy) for greedy in (True, False, True)]
    agreements = [
        Agreement(np.array([1.0, 1, 0, 1]), np.full(4, 0.5)),
        Agreement(np.array([0.5, 0.5]), np.array([0.6, 0.8])),
        Agreement(np.array([1.0]), np.array([0.9])),
    ]

    reports = summarise(["chat", "chat", "code"], answers, agreements, cost_ratio=0.05)

    by_name = {(report.kind, report.mode): report for report in reports}
    assert by_name.keys() == {
        ("all", "greedy"), ("all", "sampled"),
        ("chat", "greedy"), ("chat", "sampled"), ("code", "greedy"),
    }  # fmt: skip
    assert by_name["chat", "greedy"].first_token == 0.75
    assert by_name["all", "greedy"].first_token == 0.8
    assert by_name["all", "greedy"].num_answers == 2
    assert by_name["chat", "sampled"].first_token == pytest.approx(0.7)
    assert by_name["chat", "sampled"].survival[:2] == [0.5, 0.25]
    assert by_name["chat", "greedy"].tokens_per_step[1] == pytest.approx(
        1 + 3 / 4 + 1 / 3, abs=1e-3
    )


def test_the_report_for_people_has_every_kind_and_the_curve() -> None:
    reports = summarise(["chat"], [make_answer(True)], [Agreement(np.ones(9), np.ones(9))], 0.1)
    curve = [{"tokens": 12345, "loss": 1.5, "greedy_agreement": 0.4, "sampled_overlap": 0.3}]
    facts = {
        "target": "tiny", "commands": ["specray distill tiny out"], "layers": [0, 5],
        "trained_tokens": 20000, "train_tokens": 5000, "minutes": 3.2, "loss": "forward_kl",
        "cost_ratio": 0.1,
    }  # fmt: skip

    text = to_markdown(to_json(reports, curve, facts))

    assert "| chat | greedy | 1 | 1.000 | 1.00 / 1.00 / 1.00 / 1.00 | 4.00 / 6.00 / 9.00 |" in text
    assert "| 12,345 | 1.500 | 0.400 | 0.300 |" in text
    assert "specray distill tiny out" in text
    assert "trained on 20,000 answer tokens, 5,000 of them different" in text


def test_no_more_tokens_are_different_than_were_trained_on() -> None:
    facts = {
        "target": "tiny", "commands": [], "layers": [0, 5], "trained_tokens": 2000,
        "train_tokens": 5000, "minutes": 3.2, "loss": "forward_kl", "cost_ratio": 0.1,
    }  # fmt: skip

    text = to_markdown(to_json([], [], facts))

    assert "trained on 2,000 answer tokens, 2,000 of them different" in text
