import numpy as np
import torch

from specray.distill.examples import choose_head, make_batch, plan_epoch
from specray.distill.shards import Answer


def make_answer(prompt: list[int], tokens: list[int], top: list[list[int]]) -> Answer:
    logprobs = np.log(np.full((len(tokens), len(top[0])), 0.25)).astype(np.float16)
    return Answer(
        0, True, np.array(prompt, np.int32), np.array(tokens, np.int32),
        np.array(top, np.int32), logprobs,
    )  # fmt: skip


def test_the_head_is_what_the_target_used_by_falling_frequency() -> None:
    answer = make_answer([1], [5, 5, 7], [[5, 9], [5, 9], [7, 3]])

    head = choose_head([answer], vocab_size=10, limit=3)

    assert head.token_ids.tolist() == [5, 7, 9]  # 9 was nearly used twice, 3 once
    assert head.columns.tolist() == [-1, -1, -1, -1, -1, 0, -1, 1, -1, 2]


def test_tokens_that_never_came_have_no_place_in_the_head() -> None:
    assert len(choose_head([make_answer([1], [5], [[5, 6]])], 100, 50).token_ids) == 2


def test_every_answer_token_is_predicted_from_the_token_before_it() -> None:
    answers = [make_answer([1, 2], [3, 4, 5], [[3], [4], [5]]), make_answer([6], [7], [[8]])]
    head = choose_head(answers, 10, 10)

    batch = make_batch(answers, head)

    assert batch.token_ids.tolist() == [[1, 2, 3, 4], [6, 0, 0, 0]]
    before = batch.token_ids.flatten()[batch.positions]
    assert before.tolist() == [2, 3, 4, 6]
    assert head.token_ids[batch.targets.tokens].tolist() == [3, 4, 5, 7]
    assert head.token_ids[batch.targets.top[:, 0]].tolist() == [3, 4, 5, 8]
    assert torch.allclose(batch.targets.top_probs, torch.tensor(0.25), atol=1e-3)


def test_padding_that_only_the_target_has_is_read_as_another_token_and_never_said() -> None:
    answer = make_answer([1, 11], [5, 12, 7], [[5, 12], [12, 5], [7, 12]])

    head = choose_head([answer], vocab_size=10, limit=10)
    batch = make_batch([answer], head)

    assert head.token_ids.tolist() == [5, 7]
    assert batch.token_ids.tolist() == [[1, 0, 5, 0]]
    assert batch.targets.tokens.tolist() == [0, -1, 1]
    assert batch.targets.top.tolist() == [[0, -1], [-1, 0], [1, -1]]


def test_an_epoch_takes_every_answer_once_within_the_budget() -> None:
    lengths = [int(n) for n in np.random.default_rng(0).integers(5, 60, 200)]

    batches = plan_epoch(lengths, 128, seed=1)

    assert sorted(index for batch in batches for index in batch) == list(range(200))
    for batch in batches:
        assert max(lengths[i] for i in batch) * len(batch) <= 128
    padded = sum(max(lengths[i] for i in batch) * len(batch) for batch in batches)
    assert padded < 1.15 * sum(lengths)


def test_an_epochs_order_depends_on_its_seed_only() -> None:
    lengths = list(range(10, 90))

    assert plan_epoch(lengths, 256, 5) == plan_epoch(lengths, 256, 5)
    assert plan_epoch(lengths, 256, 5) != plan_epoch(lengths, 256, 6)


def test_a_long_answer_is_a_batch_of_its_own() -> None:
    assert plan_epoch([500, 500], 128, 0) in ([[0], [1]], [[1], [0]])
