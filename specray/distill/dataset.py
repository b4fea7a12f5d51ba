"""The answers that a training run uses: those that were there when it began."""

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from specray.distill.learner import Texts
from specray.distill.loops import loop_start
from specray.distill.prefix import PrefixStore
from specray.distill.prompts import HELD_OUT, TRAIN
from specray.distill.shards import Answer, Shard, find_shards
from specray.distill.work import WorkFolder, write_json
from specray.errors import InvalidConfigError


class _Place(NamedTuple):
    shard: Shard
    row: int
    length: int  # tokens before an endless loop

    def read(self) -> Answer:
        return self.shard[self.row].first(self.length)


class StoredAnswers:
    """Answers without their endless loops, each read from its file whenever it is asked for."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Finds all answers of some files."""
        self._places = [
            _Place(shard, row, loop_start(shard[row].token_ids))
            for shard in map(Shard, paths)
            for row in range(len(shard))
        ]

    def __len__(self) -> int:
        """How many answers there are."""
        return len(self._places)

    def __getitem__(self, index: int) -> Answer:
        """Reads one answer."""
        return self._places[index].read()

    def __iter__(self) -> Iterator[Answer]:
        """Reads one answer after the other."""
        return (place.read() for place in self._places)

    def by_file(self) -> Iterator[tuple[str, list[Answer]]]:
        """The answers of one file after the other, by its name."""
        for shard, places in groupby(self._places, lambda place: place.shard):
            yield shard.path.name, [place.read() for place in places]


class Dataset(NamedTuple):
    """What is trained on, and what is measured by."""

    train: StoredAnswers
    held_out: StoredAnswers


def load_dataset(work: WorkFolder, takes_new: bool) -> Dataset:
    """The answers of the run in `work`: the same ones whenever it is resumed.

    Args:
        work: has the answers, and notes which are used.
        takes_new: also those that came since it began.

    Raises:
        InvalidConfigError: there are none.
    """
    noted = work.shards
    names = [path.name for path in find_shards(work, TRAIN)]
    if noted.is_file() and not takes_new:
        names = json.loads(noted.read_text())
    held_out = find_shards(work, HELD_OUT)
    if not names or not held_out:
        raise InvalidConfigError(
            f"--work {work.path}: there are no answers to train on; run `specray distill` "
            "with --only answers"
        )
    write_json(noted, names)
    train = [work.answers / name for name in names]
    return Dataset(StoredAnswers(train), StoredAnswers(held_out))


def with_prefix(
    answers: StoredAnswers, folder: Path, run: Callable[[Tensor], Tensor] | None
) -> Texts:
    """The answers, with the shared prefix's output if `run` makes one."""
    if run is None:
        return Texts(answers)
    store = PrefixStore(folder)
    for name, part in answers.by_file():
        store.add(name, part, run)
    return Texts(answers, store)
