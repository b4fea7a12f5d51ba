"""What a draft model proposes and how long it takes for a token, run as a replica would run it."""

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from specray.config import ModelDraftConfig
from specray.draft.loading import load_language_model
from specray.draft.model import ModelProposer
from specray.models.sources import resolve
from specray.types import Commit, OpenSession, SamplingSettings

_DEPTH = 4
_REPEATS = 5
_LONGEST = 64  # tokens of a prompt: a longer one says nothing more of the time
_SESSION = 1


class DraftTimer:
    """Has the model as `draft.method: model` loads it, with its kernels and its trimmed head."""

    def __init__(self, model: str) -> None:
        """Loads the model.

        Args:
            model: folder, hub id or `bundled:NAME`.

        Raises:
            InvalidConfigError: it can't be loaded as a draft.
        """
        settings = ModelDraftConfig(model=model, fan_out=0)
        loaded = load_language_model(resolve(model), settings)
        # The only tokens that it proposes, [columns]; None if it proposes all.
        self.head_token_ids: Tensor | None = loaded.head_token_ids
        self._proposer = ModelProposer(loaded, settings, torch.Generator(loaded.device))

    def token_s(self, prompt: Sequence[int]) -> float:
        """Seconds for each token of a proposal behind a prompt, for one request alone.

        Of the fastest of a few proposals: what the machine does besides only adds.
        """
        prompt = tuple(prompt[-_LONGEST:])
        length = len(prompt)
        self._proposer.open(OpenSession(_SESSION, prompt, length, SamplingSettings(), _DEPTH))
        while self._proposer.work():
            pass
        seconds = []
        for position in range(length, length + _REPEATS):
            self._proposer.commit(Commit(_SESSION, position, (prompt[-1],), _DEPTH, 0))
            started_s = time.perf_counter()
            self._proposer.propose([_SESSION])
            seconds.append(time.perf_counter() - started_s)
        self._proposer.close(_SESSION)
        return min(seconds) / _DEPTH
