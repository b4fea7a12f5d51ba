"""What a distillation is told."""

import math
from dataclasses import dataclass
from pathlib import Path

from specray.distill.losses import LOSSES
from specray.errors import InvalidConfigError

ENGINES = ("auto", "vllm", "transformers")
COMPILING = ("auto", "on", "off")  # auto: in trainings that are long enough for it to pay
STEPS = ("prompts", "answers", "student", "train", "ngrams", "report", "export")
_PROMPTS_PER_MINUTE = {"cpu": 12, "cuda": 600}
_TRAINING_SHARE = 0.6  # of the minutes; the rest goes into prompts and answers
_TOKENS_PER_PROMPT = 260  # of its two answers
_EVAL_EVERY_S = 300.0
_FEWEST_FIGURES = 10  # of a short training's curve
_EPOCHS = 3  # that a budget of tokens is planned for
_FEWEST_PROMPTS = 24
_ABOVE_ZERO = ("minutes", "tokens", "num_layers", "head_tokens", "top_k", "batch_tokens", "rate",
               "max_answer_tokens", "max_prompt_tokens", "num_held_out")  # fmt: skip
_NOT_BELOW_ZERO = ("num_prompts", "num_shared", "seed")


@dataclass(frozen=True, slots=True)
class DistillSettings:
    """One distillation. `minutes` or `tokens` is the dial; the rest follows if it is not set."""

    name: str  # of the target, as the user said it
    target: str  # where it is: a folder or a hub id
    out: Path
    work: Path
    minutes: float | None = None  # of the whole
    tokens: int | None = None  # to train on, repeated ones counted again
    engine: str = "auto"
    device: str = "cpu"
    prompt_files: tuple[Path, ...] = ()
    only_files: bool = False
    num_prompts: int | None = None
    num_held_out: int = 16  # per kind
    max_answer_tokens: int = 256
    max_prompt_tokens: int = 448  # longer ones are left out
    top_k: int = 20
    num_layers: int = 8
    layers: tuple[int, ...] | None = None  # instead of the search
    student: str | None = None  # a model to train, instead of the target's layers
    num_shared: int = 3  # of the first layers that stay the target's
    loss: str = "forward_kl"
    rate: float = 1e-3
    batch_tokens: int = 1024
    compiling: str = "auto"  # one of COMPILING; another one may go on
    head_tokens: int = 12288
    seed: int = 0
    part: tuple[int, int] = (0, 1)
    layers_only: bool = False  # export what was trained, in int8, instead of a whole model
    takes_new: bool = False  # answers that came after a training run began
    start: Path | None = None  # work folder or draft with whose layers this one goes on

    def __post_init__(self) -> None:
        """Checks what the command line can't.

        Raises:
            InvalidConfigError: naming the switch.
        """
        if (self.minutes is None) == (self.tokens is None):
            raise InvalidConfigError("give one of --minutes and --tokens: it is the budget")
        self._check_numbers()
        self._check_prompts()
        if self.loss not in LOSSES:
            raise InvalidConfigError(f"--loss {self.loss}: there are {', '.join(LOSSES)}")
        if self.compiling not in COMPILING:
            raise InvalidConfigError(f"--compile {self.compiling}: one of {', '.join(COMPILING)}")
        if self.start is not None and self.student is not None:
            raise InvalidConfigError("--from begins with trained layers: leave --student out")
        if self.start is not None and not self.start.is_dir():
            raise InvalidConfigError(f"--from {self.start}: there is no such folder")
        if not 0 <= self.part[0] < self.part[1]:
            raise InvalidConfigError(f"--part {self.part[0]}/{self.part[1]}: I/N needs 0 <= I < N")

    def _check_numbers(self) -> None:
        for name in (*_ABOVE_ZERO, *_NOT_BELOW_ZERO):
            value = getattr(self, name)
            switch = f"--{name.replace('_', '-')} {value}"
            if value is None:
                continue
            if not math.isfinite(value):
                raise InvalidConfigError(f"{switch}: must be a finite number")
            if value < 0 or (value == 0 and name in _ABOVE_ZERO):
                least = "more than 0" if name in _ABOVE_ZERO else "0 or more"
                raise InvalidConfigError(f"{switch}: must be {least}")

    def _check_prompts(self) -> None:
        if self.prompt_files:
            return
        if self.only_files:
            raise InvalidConfigError("--only-prompts: name your own prompts with --prompts")
        if self.num_prompts == 0:
            raise InvalidConfigError(
                "--num-prompts 0: leaves none to train on; ask for some, or name your own with "
                "--prompts"
            )

    @property
    def planned_prompts(self) -> int:
        """Prompts to make for training."""
        if self.num_prompts is not None:
            return self.num_prompts
        if self.minutes is not None:
            return max(_FEWEST_PROMPTS, round(self.minutes * _PROMPTS_PER_MINUTE[self.device]))
        return max(_FEWEST_PROMPTS, (self.tokens or 0) // (_EPOCHS * _TOKENS_PER_PROMPT))

    @property
    def training_minutes(self) -> float | None:
        """The training's part of the minutes."""
        return None if self.minutes is None else self.minutes * _TRAINING_SHARE

    @property
    def eval_every_s(self) -> float:
        """Seconds of training between two figures of its curve."""
        training_s = 60 * (self.training_minutes or math.inf)
        return min(_EVAL_EVERY_S, training_s / _FEWEST_FIGURES)
