"""What the steps ask of a machine that generates text; vLLM and transformers both are one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """A text to continue."""

    prompt: tuple[int, ...]
    seed: int
    max_tokens: int
    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0
    may_stop_in_loop: bool = False  # an answer that only repeats itself may be cut short


class Completion(NamedTuple):
    """What was generated: up to and with the token that ended it, if one did."""

    token_ids: NDArray[np.int32]  # [tokens]
    top_ids: NDArray[np.int32]  # [tokens, top_k], most likely first; top_k 0 if not asked for
    top_logprobs: NDArray[np.float16]  # [tokens, top_k], before temperature and top-p


class Generator(Protocol):
    """Generates with the target. The same request gives the same tokens, whatever else runs."""

    @property
    def num_at_once(self) -> int:
        """Requests that run together; more in one call do no harm, fewer leave it idle."""
        ...

    def generate(self, requests: Sequence[SampleRequest], top_k: int) -> list[Completion]:
        """Continues each prompt, with the target's `top_k` most likely tokens at each position."""
        ...
