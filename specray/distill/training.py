"""Step (d) as a whole: data, student and budget become a trainer, which runs."""

from typing import Any

import torch
from torch import Tensor

from specray.distill.dataset import Dataset, load_dataset, with_prefix
from specray.distill.engines import fast_dtype
from specray.distill.examples import Head, choose_head
from specray.distill.learner import Learner
from specray.distill.losses import LOSSES
from specray.distill.prefix import is_separable, prefix_length, run_prefix
from specray.distill.settings import DistillSettings
from specray.distill.student import detach_prefix, layers_of
from specray.distill.student_choice import begin_from, chosen_layers, load_student
from specray.distill.trainer import Trainer, TrainPlan
from specray.distill.work import WorkFolder, write_json


def make_trainer(settings: DistillSettings, work: WorkFolder) -> Trainer:
    """A trainer that goes on where the last one in this folder was.

    Raises:
        InvalidConfigError: a step before has not been run, or other layers were trained there.
    """
    data = load_dataset(work, settings.takes_new)
    model = load_student(settings, work)
    run = _shared_prefix(settings, model, chosen_layers(work))
    if settings.start is not None:  # before anything is noted, as it may not fit
        first = run.length if run is not None else 0
        begin_from(settings.start, layers_of(model)[first:])  # a checkpoint replaces them
    head = _head(settings, work, data, model.config.vocab_size)
    train, held_out = (with_prefix(part, work.training, run) for part in data)
    if run is not None:
        detach_prefix(model, run.length)
    learner = Learner(model, head, LOSSES[settings.loss], fast_dtype(settings.device))
    plan = TrainPlan(
        settings.training_minutes,
        settings.tokens,
        settings.rate,
        batch_tokens=settings.batch_tokens,
        seed=settings.seed,
        eval_every_s=settings.eval_every_s,
        compiling=settings.compiling,
    )
    return Trainer(learner, train, held_out, plan, work)


class _Prefix:
    """Runs the layers that the student shares with the start of the target."""

    def __init__(self, model: Any, length: int, fast: torch.dtype | None) -> None:
        self._model = model
        self._fast = fast
        self.length = length

    def __call__(self, token_ids: Tensor) -> Tensor:  # [rows, width] to [rows, width, hidden]
        device = self._model.device
        with torch.autocast(device.type, self._fast, enabled=self._fast is not None):
            return run_prefix(self._model, token_ids.to(device), self.length)


def _shared_prefix(settings: DistillSettings, model: Any, layers: list[int]) -> _Prefix | None:
    length = prefix_length(layers, settings.num_shared)
    if not length or not is_separable(model, length):
        return None
    return _Prefix(model, length, fast_dtype(settings.device))


def _head(settings: DistillSettings, work: WorkFolder, data: Dataset, vocab_size: int) -> Head:
    """The tokens that the student learns to say, noted once for a run."""
    if not work.head.is_file():
        head = choose_head(data.train, vocab_size, settings.head_tokens)
        write_json(work.head, head.token_ids.tolist())
    return Head.of(work.read_head(), vocab_size)
