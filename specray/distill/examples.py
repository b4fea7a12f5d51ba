"""What is trained on: answers in batches of similar length."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specray.distill.losses import Targets
from specray.distill.shards import Answer

_BATCHES_PER_BUCKET = 16  # sorted by length together; larger pads less and shuffles less


class Head(NamedTuple):
    """The tokens that the student can say."""

    token_ids: NDArray[np.int64]  # [columns], by falling frequency
    columns: NDArray[np.int64]  # [vocab]; -1 for tokens that have none

    @classmethod
    def of(cls, token_ids: Sequence[int], vocab_size: int) -> "Head":
        """The head of these tokens."""
        columns = np.full(vocab_size, -1, np.int64)
        columns[list(token_ids)] = np.arange(len(token_ids))
        return cls(np.array(token_ids, np.int64), columns)

    def known(self, token_ids: NDArray[np.integer]) -> NDArray[np.integer]:
        """The target's tokens as the student reads them: 0 for padding that only that has."""
        return np.where(token_ids < len(self.columns), token_ids, 0)

    def columns_of(self, token_ids: NDArray[np.integer]) -> NDArray[np.int64]:
        """The columns of the target's tokens."""
        columns = self.columns[self.known(token_ids)]
        return np.where(token_ids < len(self.columns), columns, -1)


class Batch(NamedTuple):
    """Some answers, padded on the right."""

    token_ids: Tensor  # [rows, width]
    positions: Tensor  # [answer tokens], in the flattened rows: where each token is predicted
    targets: Targets


def choose_head(answers: Iterable[Answer], vocab_size: int, limit: int) -> Head:
    """The tokens that the target used, then those that it nearly used, at most `limit`."""
    score = np.zeros(vocab_size)
    for answer in answers:
        probs = np.exp(answer.top_logprobs.astype(np.float32))
        _add(score, answer.token_ids, np.ones(len(answer.token_ids)))
        _add(score, answer.top_ids.ravel(), probs.ravel())
    order = np.argsort(-score, kind="stable")[:limit]
    return Head.of(order[score[order] > 0].tolist(), vocab_size)


def _add(score: NDArray[Any], token_ids: NDArray[np.integer], weights: NDArray[Any]) -> None:
    """Leaves out padding that only the target's vocabulary has."""
    known = token_ids < len(score)
    np.add.at(score, token_ids[known], weights[known])


def plan_epoch(lengths: Sequence[int], batch_tokens: int, seed: int) -> list[list[int]]:
    """Indices of the answers of each batch, in an order that depends on the seed only.

    Args:
        lengths: tokens of each answer with its prompt.
        batch_tokens: of a batch, padding included; a longer answer is a batch of its own.
        seed: another one for each epoch.
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(lengths)).tolist()
    mean = max(1, sum(lengths) // max(1, len(lengths)))
    bucket = max(1, batch_tokens * _BATCHES_PER_BUCKET // mean)
    batches: list[list[int]] = []
    for first in range(0, len(order), bucket):
        row: list[int] = []
        for index in sorted(order[first : first + bucket], key=lambda i: lengths[i]):
            if row and lengths[index] * (len(row) + 1) > batch_tokens:
                batches.append(row)
                row = []
            row.append(index)
        batches.append(row)
    return [batches[i] for i in rng.permutation(len(batches))]


def make_batch(answers: Sequence[Answer], head: Head) -> Batch:
    """Pads some answers to the longest; every answer token is predicted once."""
    width = max(len(a.prompt_ids) + len(a.token_ids) for a in answers) - 1
    rows = np.zeros((len(answers), width), np.int64)
    positions = []
    for i, answer in enumerate(answers):
        text = np.concatenate((answer.prompt_ids, answer.token_ids))[:-1]
        rows[i, : len(text)] = head.known(text)
        start = i * width + len(answer.prompt_ids) - 1
        positions.append(np.arange(start, start + len(answer.token_ids)))
    token_ids = np.concatenate([a.token_ids for a in answers])
    top_ids = np.concatenate([a.top_ids for a in answers])
    probs = np.exp(np.concatenate([a.top_logprobs for a in answers]).astype(np.float32))
    return Batch(
        torch.from_numpy(rows),
        torch.from_numpy(np.concatenate(positions)),
        Targets(
            torch.from_numpy(head.columns_of(token_ids)),
            torch.from_numpy(head.columns_of(top_ids)),
            torch.from_numpy(probs),
        ),
    )
