"""A disturbed draft of a target that plans as specray's own: greedy output is the target's.

Apart from other engines' tests: vLLM's metrics are those of the process's latest engine.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from vllm import SamplingParams

from specray.types import SessionFrame, SpeculationPolicy
from specray.wire.client import configure
from tests.target.drafts import Disturbance
from tests.target.engine import MAX_DEPTH, FakeRouter, Job, specray_engine
from tests.target.identity import assert_same, capped, prompts
from tests.target.plugins import PLANNING_SCHEDULER
from tests.target.sources import KINDS, Sources, followers, served
from tests.target.tiny_model import TinyModel

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

SMALL = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "num_gpu_blocks_override": 48}
FEW = list(range(10, 22))  # tokens, so that much repeats itself
GREEDY = SamplingParams(temperature=0, max_tokens=150, ignore_eos=True)


class Listening(Disturbance[SessionFrame]):
    """Passes everything on, and counts commits for whose answers no step is held back."""

    num_unawaited = 0

    def pass_on(self, items: Sequence[SessionFrame]) -> list[SessionFrame]:
        commits = [commit for frame in items for commit in frame.commits]
        self.num_unawaited += sum(commit.is_unawaited for commit in commits)
        return list(items)


def test_a_target_that_plans(tiny_folder: Path, tiny: TinyModel, sources: Sources) -> None:
    """It holds no step back for answers that are not worth it, and makes copies of its own."""
    few = GREEDY.clone()
    few.allowed_token_ids = FEW
    free = [Job(prompt, GREEDY) for prompt in prompts(4, 20, seed=6)]
    halves = [free, [replace(job, params=few) for job in free]]
    policy = SpeculationPolicy(max_depth=MAX_DEPTH, max_wait_ms=20.0, has_stop_gap=True)
    frames = Listening()
    with specray_engine(tiny_folder, PLANNING_SCHEDULER, **SMALL) as engine:
        plain = [engine.answers(half) for half in halves]  # apart: see `test_engine.Halves`
        engine.take_steps()
        asyncio.run(configure(engine.address, policy))
        proposer = sources.proposer(KINDS["hybrid"], followers([*plain[0], *plain[1]]))
        with (
            served(proposer) as draft,
            FakeRouter(engine.address, draft, disturbance=Disturbance(), frames=frames),
        ):
            got = [engine.answers(capped(half, (None, 5, 3, None))) for half in halves]
        stats, steps = engine.stats(), engine.take_steps()
    for half, expected, answers in zip(halves, plain, got, strict=True):
        assert_same(tiny, half, expected, answers)
    assert sum(step.num_ahead for step in steps) > 0
    assert frames.num_unawaited > 0
    assert stats.sources["stop_gap"].num_proposed > 0
    assert stats.num_open_sessions == 0
