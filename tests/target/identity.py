"""Whether output with speculation is the output without."""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from vllm import RequestOutput, SamplingParams

from specray.types import Source
from tests.target.drafts import Scripted
from tests.target.engine import Engine, Job, Step, speculating
from tests.target.tiny_model import VOCAB_SIZE, TinyModel

CLOSE_LOGITS = 1e-4  # batches of other sizes round float32 sums differently; logits are about 10
CAPS = (None, 1, 2, 3, 5, 0, None, 4)  # of the requests that run together


def prompts(num: int, length: int, seed: int = 0) -> list[tuple[int, ...]]:
    rng = np.random.default_rng(seed)
    return [tuple(rng.integers(1, VOCAB_SIZE, length + i).tolist()) for i in range(num)]


def capped(jobs: Sequence[Job], caps: Sequence[int | None] = CAPS) -> list[Job]:
    """The same requests with speculation, each with its own cap."""
    return [
        replace(job, params=speculating(job.params, cap))
        for job, cap in zip(jobs, itertools.cycle(caps), strict=False)
    ]


def scripted(
    jobs: Sequence[Job],
    answers: Sequence[Sequence[int]],
    noise: float,
    make: type[Scripted] = Scripted,
) -> Scripted:
    draft = make(noise)
    draft.answers = {job.prompt: answer for job, answer in zip(jobs, answers, strict=True)}
    return draft


def assert_same(
    model: TinyModel,
    jobs: Sequence[Job],
    expected: Sequence[list[int]],
    got: Sequence[list[int]],
) -> None:
    """Token by token; a difference passes only where the target itself is all but undecided."""
    for job, plain, speculated in zip(jobs, expected, got, strict=True):
        assert len(plain) == len(speculated)
        if plain != speculated:
            position = next(i for i, t in enumerate(plain) if speculated[i] != t)
            gap = model.gap([*job.prompt, *plain[:position]])
            assert gap < CLOSE_LOGITS, f"differs at {position}, where the logits are {gap} apart"


def shorter(params: SamplingParams, max_tokens: int) -> SamplingParams:
    params = params.clone()
    params.max_tokens = max_tokens
    return params


def deepest_of(steps: Sequence[Step], outputs: Sequence[RequestOutput]) -> list[int]:
    """The most draft tokens that a step verified for each request."""
    return [
        max(
            depth
            for step in steps
            for req_id, depth in step.depths.items()
            if req_id.startswith(f"{output.request_id}-")
        )
        for output in outputs
    ]


def accepted_by_source(engine: Engine) -> Counter[Source]:
    """Tokens since the engine's start."""
    return Counter({source: s.num_accepted for source, s in engine.stats().sources.items()})


class Tally:
    """What an engine counted since this was made."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._before = self._read()
        engine.take_steps()

    def take(self) -> tuple[int, int]:
        """Proposed and accepted tokens."""
        proposed, accepted = self._read()
        return proposed - self._before[0], accepted - self._before[1]

    def _read(self) -> tuple[int, int]:
        sources = self._engine.stats().sources.values()
        return sum(s.num_proposed for s in sources), sum(s.num_accepted for s in sources)
