"""Whether an engine's answers are its model's, greedy and sampled, whatever it is made of."""

import numpy as np
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind

from tests.target.distributions import (
    Filter,
    Reference,
    conditional_p_value,
    marginal_p_values,
)
from tests.target.drafts import Distorted
from tests.target.engine import Engine, FakeRouter, Job, speculating
from tests.target.identity import CAPS, Tally, assert_same, capped, prompts, scripted
from tests.target.tiny_model import TinyModel

BATCH = 64
_ALPHA = 1e-6  # of each of the 4 p-values
_NUM_REQUESTS = 24 * BATCH


def assert_greedy_identity(engine: Engine, model: TinyModel, noise: float) -> None:
    """With a draft that is wrong in so large a part of its tokens."""
    params = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
    jobs = [Job(prompt, params) for prompt in prompts(len(CAPS), 20)]
    expected = engine.answers(jobs)
    for job, answer in zip(jobs, expected, strict=True):
        assert len(set(answer)) > 20  # no loops, which would hide faults
        assert answer[0] == model.logits([job.prompt])[0].argmax()  # it computes this model
    tally = Tally(engine)
    with FakeRouter(engine.address, scripted(jobs, expected, noise)):
        assert_same(model, jobs, expected, engine.answers(capped(jobs)))
    proposed, accepted = tally.take()
    assert accepted > 100
    assert (accepted == proposed) == (noise == 0.0)


def assert_exact_at_temperature_1(engine: Engine, model: TinyModel) -> None:
    """With a draft of another distribution; wrongly refused with a probability below 4e-6."""
    reference = Reference(model, prompts(1, 8, seed=6)[0])
    params = SamplingParams(max_tokens=6, ignore_eos=True, output_kind=RequestOutputKind.FINAL_ONLY)
    draft = Distorted(model, reference.prompt)
    jobs = [Job(reference.prompt, speculating(params))] * BATCH
    tally = Tally(engine)
    with FakeRouter(engine.address, draft):
        answers = np.concatenate([engine.answers(jobs) for _ in range(0, _NUM_REQUESTS, BATCH)])
    proposed, accepted = tally.take()
    assert 0.15 < accepted / proposed < 0.85
    assert min(marginal_p_values(answers, reference, Filter())) > _ALPHA
    assert conditional_p_value(answers, reference, Filter(), draft.dense()) > _ALPHA
