"""What a training run is resumed from: one file that is the last one or the one before."""

from pathlib import Path
from typing import Any

import torch

from specray.distill.work import write_whole
from specray.errors import InvalidConfigError


class Progress:
    """How far a run is."""

    def __init__(self) -> None:
        self.step = 0
        self.epoch = 0  # from 1; 0 is before the first
        self.batch = 0  # of the epoch
        self.num_answers = 0  # of the epoch
        self.tokens = 0  # answer tokens trained on
        self.seconds = 0.0
        self.best = float("inf")  # loss on held-out answers

    def begin_epoch(self, num_answers: int) -> None:
        """Counts an epoch."""
        self.epoch, self.batch, self.num_answers = self.epoch + 1, 0, num_answers

    def advance(self, num_tokens: int, seconds: float) -> None:
        """Counts a step."""
        self.step += 1
        self.batch += 1
        self.tokens += num_tokens
        self.seconds += seconds

    def as_dict(self) -> dict[str, Any]:
        """All fields."""
        return dict(vars(self))

    def load(self, values: dict[str, Any]) -> None:
        """Sets all fields."""
        vars(self).update(values)


def save(path: Path, progress: Progress, layers: torch.nn.Module, optimizer: Any) -> None:
    """Writes everything that the next step depends on."""
    state = {
        "progress": progress.as_dict(),
        "layers": layers.state_dict(),
        "optimizer": optimizer.state_dict(),
        "rng": torch.get_rng_state(),
    }
    write_whole(path, lambda partial: torch.save(state, partial))


def restore(path: Path, progress: Progress, layers: torch.nn.ModuleList, optimizer: Any) -> None:
    """Goes back to where `save` was called.

    Raises:
        InvalidConfigError: other layers were saved.
    """
    # On the CPU first: a run may go on where the device that it began on is not. All are copied.
    state = torch.load(path, weights_only=True, map_location="cpu")
    try:
        layers.load_state_dict(state["layers"])
    except RuntimeError as error:
        num_saved = len({name.partition(".")[0] for name in state["layers"]})
        raise InvalidConfigError(
            f"{path}: {num_saved} layers were trained there that don't fit the {len(layers)} to be "
            "trained here; name another folder with --work"
        ) from error
    progress.load(state["progress"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["rng"])
