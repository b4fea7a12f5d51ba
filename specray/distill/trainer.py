"""Step (d): the student's layers are trained until the budget is spent."""

import json
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from specray.distill import checkpoint
from specray.distill.best import BestPoint, read_facts, save_best
from specray.distill.checkpoint import Progress
from specray.distill.evaluation import evaluate
from specray.distill.examples import plan_epoch
from specray.distill.learner import Learner, Texts
from specray.distill.work import WorkFolder, write_text

logger = logging.getLogger(__name__)

_CLIP = 1.0
_TELL_EVERY = 20  # steps
_TRAINING_PER_EVAL = 10  # times what an evaluation takes, at least, between two of them
_COMPILING_PAYS_S = 600.0  # of training left: it takes up to 80 on a core and saves a fifth


@dataclass(frozen=True, slots=True)
class TrainPlan:
    """How to train, and for how long: one of `minutes` and `tokens` is set."""

    minutes: float | None = None
    tokens: int | None = None  # answer tokens, repeated ones counted again
    rate: float = 1e-3
    warm_up: float = 0.03  # share of the budget
    final_rate: float = 0.02  # share of `rate`
    batch_tokens: int = 1024  # prompts and padding included
    seed: int = 0
    save_every_s: float = 240.0
    eval_every_s: float = 300.0  # see `DistillSettings`
    compiling: str = "auto"  # see `COMPILING`


class Trainer:
    """One training run in a work folder: goes on by itself where it was killed."""

    def __init__(
        self, learner: Learner, train: Texts, held_out: Texts, plan: TrainPlan, work: WorkFolder
    ) -> None:
        self._learner = learner
        self._train = train
        self._held_out = held_out
        self._plan = plan
        self._checkpoint = work.checkpoint
        self._curve = work.curve
        self._best = work.best
        self._lengths = [len(a.prompt_ids) + len(a.token_ids) for a in train.answers]
        self._optimizer = torch.optim.AdamW(
            learner.layers.parameters(), plan.rate, (0.9, 0.95), weight_decay=0.01, fused=True
        )
        self._batches: list[list[int]] = []
        self._planned_epoch = -1
        self._may_compile = plan.compiling != "off"
        self.progress = Progress()
        if self._checkpoint.is_file():
            checkpoint.restore(self._checkpoint, self.progress, learner.layers, self._optimizer)
            logger.info("training resumes at step %d", self.progress.step)
        self._forget_later_figures()
        # The file knows best: a kill may have come between it and the checkpoint.
        self.progress.best = _loss_of(self._best, self.progress.best)
        if self.progress.num_answers != len(self._lengths):
            self.progress.begin_epoch(len(self._lengths))

    def run(self, on_step: Callable[[Progress], None] = lambda _: None) -> None:
        """Trains until the budget is spent; a KeyboardInterrupt ends it in good order."""
        saved = evaluated = time.monotonic()
        eval_every_s = self._plan.eval_every_s
        try:
            while self._spent() < 1:
                self._choose_compiling()
                self._step()
                on_step(self.progress)
                if time.monotonic() - evaluated >= eval_every_s:
                    began = time.monotonic()
                    self._evaluate()
                    evaluated = time.monotonic()
                    eval_every_s = max(eval_every_s, _TRAINING_PER_EVAL * (evaluated - began))
                if time.monotonic() - saved >= self._plan.save_every_s:
                    self._save()
                    saved = time.monotonic()
        except KeyboardInterrupt:
            logger.info("interrupted: the best so far is kept")
        self._evaluate()
        self._save()

    def _forget_later_figures(self) -> None:
        """Figures of steps that a kill took back will be noted again."""
        lines = self._curve_until(self.progress.step)
        write_text(self._curve, "".join(f"{line}\n" for line in lines))

    def _curve_until(self, step: int) -> list[str]:
        lines = self._curve.read_text("utf-8").splitlines() if self._curve.is_file() else []
        return [line for line in lines if json.loads(line)["step"] <= step]

    def _save(self) -> None:
        checkpoint.save(self._checkpoint, self.progress, self._learner.layers, self._optimizer)

    def _spent(self) -> float:
        """Share of the budget."""
        if self._plan.tokens is not None:
            return self.progress.tokens / self._plan.tokens
        return self.progress.seconds / (60 * (self._plan.minutes or math.inf))

    def _left_s(self) -> float:
        """Seconds until the budget is spent, at the rate so far."""
        return self.progress.seconds * (1 / max(self._spent(), 1e-9) - 1)

    def _choose_compiling(self) -> None:
        """Once in a run, after the warm-up: it would skip that, and before no rate is known."""
        if not self._may_compile or self._spent() < self._plan.warm_up:
            return
        self._may_compile = False
        if self._plan.compiling == "on" or self._left_s() > _COMPILING_PAYS_S:
            self._learner.compile()

    def _rate(self) -> float:
        spent = self._spent()
        if spent < self._plan.warm_up:
            return self._plan.rate * (spent / self._plan.warm_up + 0.01)
        left = (1 - spent) / (1 - self._plan.warm_up)
        return self._plan.rate * max(left, self._plan.final_rate)

    def _step(self) -> None:
        """One batch. Interrupted at any point, it has either happened or not."""
        started = time.monotonic()
        self._optimizer.zero_grad(set_to_none=True)
        loss, count = self._learner.accumulate(self._train, self._next_batch())
        torch.nn.utils.clip_grad_norm_(self._learner.layers.parameters(), _CLIP)
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate()
        self._optimizer.step()
        self.progress.advance(count, time.monotonic() - started)
        if self.progress.step % _TELL_EVERY == 0:
            self._tell(loss)

    def _next_batch(self) -> list[int]:
        progress = self.progress
        while True:
            if self._planned_epoch != progress.epoch:
                seed = self._plan.seed * 1000 + progress.epoch
                self._batches = plan_epoch(self._lengths, self._plan.batch_tokens, seed)
                self._planned_epoch = progress.epoch
            if progress.batch < len(self._batches):
                return self._batches[progress.batch]
            progress.begin_epoch(len(self._lengths))

    def _evaluate(self) -> None:
        """Notes the figures of held-out answers; keeps the layers if they are the best so far."""
        figures = evaluate(self._learner, self._held_out)
        point = {**self.progress.as_dict(), **figures._asdict()}
        lines = self._curve_until(self.progress.step - 1)  # not twice where a finished one is run
        write_text(self._curve, "".join(f"{line}\n" for line in [*lines, json.dumps(point)]))
        logger.info(
            "held-out after %d tokens: KL %.3f, greedy agreement %.3f, overlap %.3f",
            self.progress.tokens,
            *figures,
        )
        if figures.loss < self.progress.best:
            best = BestPoint(figures.loss, self.progress.tokens, self.progress.seconds)
            save_best(self._best, self._learner.layers, best)
            # Not before: after an interrupt during the writing the last evaluation writes it again.
            self.progress.best = figures.loss

    def _tell(self, loss: float) -> None:
        progress = self.progress
        rate = progress.tokens / max(progress.seconds, 1e-9)
        logger.info(
            "step %d, epoch %d: loss %.3f, %.0f tokens/s, %.0f min left",
            progress.step,
            progress.epoch,
            loss,
            rate,
            self._left_s() / 60,
        )


def _loss_of(best: Path, unnoted: float) -> float:
    """The loss that was noted with the best layers, infinite if there are none.

    Args:
        best: the layers' file.
        unnoted: what it is if an earlier version has not noted it.
    """
    return read_facts(best).get("held_out_loss", unnoted) if best.is_file() else math.inf
