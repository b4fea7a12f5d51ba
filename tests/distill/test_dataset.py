"""Answers stay in their files, however many there are."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

from specray.distill.dataset import Dataset, StoredAnswers, load_dataset, with_prefix
from specray.distill.examples import choose_head, make_batch, plan_epoch
from specray.distill.shards import Answer, save_shard
from specray.distill.work import WorkFolder
from specray.errors import InvalidConfigError

PER_SHARD = 8
TOP_K = 20
VOCAB = 1000


def make_answer(rng: np.random.Generator, num_tokens: int) -> Answer:
    shape = (num_tokens, TOP_K)
    return Answer(
        0,
        bool(rng.integers(2)),
        rng.integers(VOCAB, size=4).astype(np.int32),
        rng.integers(VOCAB, size=num_tokens).astype(np.int32),
        rng.integers(VOCAB, size=shape).astype(np.int32),
        rng.normal(-3, 1, shape).astype(np.float16),
    )


def make_work(folder: Path, num_shards: int, num_tokens: int) -> WorkFolder:
    work = WorkFolder(folder)
    rng = np.random.default_rng(0)
    for i in range(num_shards):
        answers = [make_answer(rng, num_tokens) for _ in range(PER_SHARD)]
        save_shard(work.answers / f"train-{i:05d}.npz", answers)
    save_shard(work.answers / "held_out-00000.npz", [make_answer(rng, num_tokens)])
    return work


def train_on(data: Dataset) -> None:
    """All that a training does with the answers, without the student."""
    head = choose_head(data.train, VOCAB, 100)
    lengths = [len(answer.token_ids) for answer in data.train]
    for batch in plan_epoch(lengths, 4 * max(lengths), seed=0):
        make_batch([data.train[i] for i in batch], head)


def peak_bytes(work: WorkFolder) -> int:
    tracemalloc.start()
    try:
        train_on(load_dataset(work, takes_new=False))
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_the_answers(tmp_path: Path) -> None:
    peaks = [
        peak_bytes(make_work(tmp_path / str(num_shards), num_shards, num_tokens=200))
        for num_shards in (2, 2, 32)  # the first warms up
    ]

    bytes_per_answer = 200 * TOP_K * (4 + 2)
    assert peaks[2] - peaks[1] < 0.1 * 30 * PER_SHARD * bytes_per_answer


def test_no_file_stays_open(tmp_path: Path) -> None:
    """There may be more of them than a process may open."""

    def run(token_ids: torch.Tensor) -> torch.Tensor:
        return token_ids[..., None].float()

    work = make_work(tmp_path, num_shards=20, num_tokens=3)
    data = load_dataset(work, takes_new=False)
    texts = with_prefix(data.train, work.training, run)

    assert texts.prefix is not None
    held = [texts.prefix.read([i], 6) for i in range(len(texts.answers))]
    held_answers = list(texts.answers)

    assert len(held) == len(held_answers) == 20 * PER_SHARD
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    links = [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    assert not any(link.is_relative_to(tmp_path) for link in links)


def test_the_prefix_of_an_answer_is_its_own(tmp_path: Path) -> None:
    work = make_work(tmp_path, num_shards=3, num_tokens=5)
    data = load_dataset(work, takes_new=False)

    texts = with_prefix(data.train, work.training, lambda ids: ids[..., None].float() % 100)

    assert texts.prefix is not None
    for index in (23, 0, 11):
        answer = texts.answers[index]
        text = np.concatenate((answer.prompt_ids, answer.token_ids))[:-1]
        assert texts.prefix.read([index], len(text))[0, :, 0].tolist() == (text % 100).tolist()


def test_answers_are_in_the_order_of_their_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    answers = [make_answer(rng, num_tokens) for num_tokens in (3, 1, 5, 2, 4)]
    paths = [tmp_path / "b.npz", tmp_path / "a.npz"]
    save_shard(paths[0], answers[:2])
    save_shard(paths[1], answers[2:])

    stored = StoredAnswers(paths)

    assert len(stored) == 5
    for i, (found, wanted) in enumerate(zip(stored, answers, strict=True)):
        for field, again, expected in zip(found, stored[i], wanted, strict=True):
            assert np.array_equal(field, expected)
            assert np.array_equal(again, expected)


def test_an_endless_loop_is_trained_on_for_two_rounds(tmp_path: Path) -> None:
    tokens = np.array([5, 6, *[7, 8, 9] * 5], np.int32)
    answer = make_answer(np.random.default_rng(0), len(tokens))._replace(token_ids=tokens)
    save_shard(tmp_path / "a.npz", [answer])

    (trimmed,) = StoredAnswers([tmp_path / "a.npz"])

    assert trimmed.token_ids.tolist() == [5, 6, 7, 8, 9, 7, 8, 9]
    assert len(trimmed.top_ids) == len(trimmed.top_logprobs) == 8


def test_a_run_keeps_to_the_answers_that_it_began_with(tmp_path: Path) -> None:
    work = make_work(tmp_path, num_shards=1, num_tokens=3)
    assert len(load_dataset(work, takes_new=False).train) == PER_SHARD
    make_work(tmp_path, num_shards=2, num_tokens=3)

    assert len(load_dataset(work, takes_new=False).train) == PER_SHARD
    assert len(load_dataset(work, takes_new=True).train) == 2 * PER_SHARD


def test_without_answers_there_is_nothing_to_train_on(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="--only answers"):
        load_dataset(WorkFolder(tmp_path), takes_new=False)
