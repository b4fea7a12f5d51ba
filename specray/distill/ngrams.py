"""Step (d'): an n-gram model of the target's answers, a draft that needs no model to run."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from specray.distill.dataset import StoredAnswers
from specray.distill.ngram_counts import Counts, count_ngrams
from specray.distill.prompts import TRAIN
from specray.distill.shards import find_shards
from specray.distill.work import WorkFolder, write_whole
from specray.errors import InvalidConfigError

logger = logging.getLogger(__name__)

_NARROW = 1 << 16


def write_ngrams(work: WorkFolder) -> None:
    """Counts all answers to training prompts that are there.

    Args:
        work: has the answers, and takes the file.

    Raises:
        InvalidConfigError: there are no answers.
    """
    shards = find_shards(work, TRAIN)
    if not shards:
        raise InvalidConfigError(
            f"--work {work.path}: there are no answers to count; run `specray distill` "
            "with --only answers"
        )
    orders = count_ngrams(StoredAnswers(shards))
    for size, counts in enumerate(orders, start=1):
        logger.info("n-grams: %d contexts of %d tokens", len(counts.keys), size)
    write_whole(work.ngrams, lambda partial: _save(orders, partial))


def _save(orders: Sequence[Counts], path: Path) -> None:
    """The file that `specray.models.ngrams` describes."""
    tensors: dict[str, torch.Tensor] = {}
    for size, counts in enumerate(orders, start=1):
        is_narrow = counts.token_ids.max(initial=0) < _NARROW
        arrays: dict[str, NDArray[Any]] = {
            "keys": counts.keys,
            "starts": counts.starts.astype(np.int32),
            "token_ids": counts.token_ids.astype(np.uint16 if is_narrow else np.int32),
            "shares": counts.shares.astype(np.float16),
        }
        tensors |= {f"{size}.{name}": torch.from_numpy(array) for name, array in arrays.items()}
    save_file(tensors, path)
