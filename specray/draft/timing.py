"""How long a draft model takes for a token, run as a replica would run it."""

import time
from collections.abc import Sequence

from specray.config import DraftConfig, ModelDraftConfig
from specray.draft.factory import make_proposer
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
        self._proposer = make_proposer(DraftConfig(method="model", model=settings))

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
