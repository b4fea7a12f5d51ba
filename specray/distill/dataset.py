"""The answers that a training run uses: those that were there when it began."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from specray.distill.examples import trim_loop
from specray.distill.learner import Texts
from specray.distill.prefix import PrefixStore
from specray.distill.prompts import HELD_OUT, TRAIN
from specray.distill.shards import Answer, find_shards, load_shard
from specray.distill.work import WorkFolder, write_json
from specray.errors import InvalidConfigError


class Dataset(NamedTuple):
    """Answers by the file that they are in."""

    train: dict[str, list[Answer]]
    held_out: dict[str, list[Answer]]

    @property
    def all_train(self) -> list[Answer]:
        """The training answers, in order."""
        return [answer for answers in self.train.values() for answer in answers]


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
    held_out = [path.name for path in find_shards(work, HELD_OUT)]
    if not names or not held_out:
        raise InvalidConfigError(
            f"--work {work.path}: there are no answers to train on; run `specray distill` "
            "with --only answers"
        )
    write_json(noted, names)
    return Dataset(_load(work.answers, names), _load(work.answers, held_out))


def _load(folder: Path, names: list[str]) -> dict[str, list[Answer]]:
    return {name: [trim_loop(a) for a in load_shard(folder / name)] for name in names}


def with_prefix(
    shards: dict[str, list[Answer]], folder: Path, run: Callable[[Tensor], Tensor] | None
) -> Texts:
    """The answers, with the shared prefix's output if `run` makes one."""
    answers = [answer for shard in shards.values() for answer in shard]
    if run is None:
        return Texts(answers)
    store = PrefixStore(folder)
    for name, shard in shards.items():
        store.add(name, shard, run)
    return Texts(answers, store)
