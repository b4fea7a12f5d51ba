"""Two ranks on the CPU: greedy identity, and exact distributions at temperature 1."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind

from tests.target.distributions import (
    Filter,
    Reference,
    conditional_p_value,
    marginal_p_values,
)
from tests.target.drafts import Distorted
from tests.target.engine import Engine, FakeRouter, Job, specray_engine, speculating
from tests.target.identity import CAPS, Tally, assert_same, capped, prompts, scripted
from tests.target.tiny_model import TinyModel

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

ALPHA = 1e-6  # of each of the 4 p-values
BATCH = 64
NUM_REQUESTS = 24 * BATCH


@pytest.fixture(scope="module")
def engine(tiny_folder: Path) -> Iterator[Engine]:
    with specray_engine(
        tiny_folder, tensor_parallel_size=2, max_num_seqs=BATCH, num_gpu_blocks_override=300
    ) as engine:
        yield engine


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_greedy_identity(engine: Engine, tiny: TinyModel, noise: float) -> None:
    params = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
    jobs = [Job(prompt, params) for prompt in prompts(len(CAPS), 20)]
    expected = engine.answers(jobs)
    for job, answer in zip(jobs, expected, strict=True):
        gaps = tiny.logits([job.prompt])[0]
        assert answer[0] == gaps.argmax()  # the ranks together compute the model
    tally = Tally(engine)
    with FakeRouter(engine.address, scripted(jobs, expected, noise)):
        assert_same(tiny, jobs, expected, engine.answers(capped(jobs)))
    proposed, accepted = tally.take()
    assert accepted > 100
    assert (accepted == proposed) == (noise == 0.0)


def test_distribution_at_temperature_1(engine: Engine, tiny: TinyModel) -> None:
    reference = Reference(tiny, prompts(1, 8, seed=6)[0])
    params = SamplingParams(max_tokens=6, ignore_eos=True, output_kind=RequestOutputKind.FINAL_ONLY)
    draft = Distorted(tiny, reference.prompt)
    jobs = [Job(reference.prompt, speculating(params))] * BATCH
    tally = Tally(engine)
    with FakeRouter(engine.address, draft):
        answers = np.concatenate([engine.answers(jobs) for _ in range(0, NUM_REQUESTS, BATCH)])
    proposed, accepted = tally.take()
    assert 0.15 < accepted / proposed < 0.85
    assert min(marginal_p_values(answers, reference, Filter())) > ALPHA
    assert conditional_p_value(answers, reference, Filter(), draft.dense()) > ALPHA
