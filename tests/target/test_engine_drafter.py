"""vLLM's own drafters under our scheduler: the output is the target's, whatever they draft."""

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from vllm import SamplingParams
from vllm.config import SpeculativeConfig

from specray.target.engine_drafter import DraftingClock, find_drafter
from specray.target.engine_drafts import NO_DRAFTER, Drafter
from tests.target.distributions import (
    Filter,
    Reference,
    conditional_p_value,
    marginal_p_values,
)
from tests.target.engine import (
    MAX_DEPTH,
    Engine,
    FakeRouter,
    Job,
    specray_engine,
    speculating,
)
from tests.target.identity import (
    Tally,
    accepted_by_source,
    assert_same,
    capped,
    prompts,
    scripted,
    shorter,
)
from tests.target.tiny_model import VOCAB_SIZE, TinyModel, save_eagle3

GREEDY = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
SAMPLED = SamplingParams(temperature=1.0, max_tokens=6, ignore_eos=True)
PROMPT = prompts(1, 8, seed=5)[0]
ALPHA = 1e-6
BATCH = 64
ROOM = 3  # for tokens of one request in a step of an engine with n-grams
TRIES = 10  # of which each fails once in ten
SMALL = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "num_gpu_blocks_override": 200}


def config_of(**options: Any) -> SpeculativeConfig:
    """As vLLM has completed it, without a model to read."""
    config = object.__new__(SpeculativeConfig)
    defaults = {"num_speculative_tokens": 4, "parallel_drafting": False, "draft_model_config": None}
    for name, value in (defaults | options).items():
        object.__setattr__(config, name, value)
    return config


@pytest.mark.parametrize(
    ("options", "drafter"),
    [
        ({"method": "eagle3"}, Drafter(4)),
        ({"method": "draft_model"}, Drafter(4)),
        ({"method": "mtp"}, Drafter(4)),
        ({"method": "ngram"}, Drafter(4, has_context=False)),
        ({"method": "suffix"}, Drafter(4, is_fixed=True, has_context=False, is_shared=True)),
        ({"method": "medusa"}, Drafter(4, is_fixed=True, has_context=False)),
        ({"method": "eagle3", "parallel_drafting": True}, Drafter(4, is_fixed=True)),
        ({"method": "custom_class"}, NO_DRAFTER),
    ],
)
def test_methods(options: dict[str, Any], drafter: Drafter) -> None:
    assert find_drafter(config_of(**options), 1024) == drafter


@pytest.mark.parametrize(("drafters", "is_warned"), [(512, True), (1024, False)])
def test_a_drafter_that_reads_less_than_the_target_is_told_of(
    caplog: pytest.LogCaptureFixture, drafters: int, is_warned: bool
) -> None:
    model = SimpleNamespace(max_model_len=drafters)
    find_drafter(config_of(method="draft_model", draft_model_config=model), 1024)
    find_drafter(config_of(method="eagle3", draft_model_config=model), 1024)
    assert "eagle3" not in caplog.text  # of which that is mended
    assert ("the draft_model drafter reads 512 tokens at most" in caplog.text) is is_warned


def test_clock_tells_each_time_once() -> None:
    clock = DraftingClock(torch.device("cpu"))
    assert clock.take() is None
    clock.start()
    assert clock.take() is None
    clock.start()
    time.sleep(0.01)
    clock.stop()
    taken = clock.take()
    assert taken is not None
    assert taken >= 0.01
    assert clock.take() is None


def test_clock_of_a_gpu_waits_for_what_was_handed_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    times, waited = iter([5.0, 7.5]), []

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.ms = next(times)

        def synchronize(self) -> None:
            waited.append(self.ms)

        def elapsed_time(self, other: "Event") -> float:
            assert waited == [other.ms]
            return other.ms - self.ms

    monkeypatch.setattr(torch.cuda, "Event", Event)
    clock = DraftingClock(torch.device("cuda"))
    clock.start()
    clock.stop()
    assert clock.take() == pytest.approx(0.0025)


class Drafting(Engine):
    """An engine, and by which method it drafts."""

    method: str


@pytest.fixture(scope="module", params=["draft_model", "eagle3", "ngram"])
def engine(
    request: pytest.FixtureRequest, tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Drafting]:
    """The draft is the target itself, but reads less; the head knows nothing."""
    head = tmp_path_factory.mktemp("head") / "eagle3"
    save_eagle3(head, num_positions=128)
    config = {"method": request.param, "num_speculative_tokens": MAX_DEPTH} | {
        "draft_model": {"model": str(tiny_folder), "max_model_len": 256},
        "eagle3": {"model": str(head)},
        "ngram": {
            "num_speculative_tokens": ROOM,
            "prompt_lookup_min": 1,
            "prompt_lookup_max": 3,
        },
    }[request.param]
    with specray_engine(tiny_folder, speculative_config=config, **SMALL) as engine:
        engine.__class__ = Drafting
        assert isinstance(engine, Drafting)
        engine.method = request.param
        yield engine


@pytest.mark.e2e
@pytest.mark.timeout(600)
def test_greedy_output_is_the_targets(engine: Drafting, tiny: TinyModel) -> None:
    jobs = [Job(prompt, GREEDY) for prompt in prompts(8, 20)]
    plain = engine.answers(jobs[:4]) + engine.answers(jobs[4:])
    tally = Tally(engine)
    assert_same(tiny, jobs, plain, engine.answers(capped(jobs)))
    proposed, accepted = tally.take()
    assert proposed > 100
    assert accepted_by_source(engine)["engine"] == accepted
    if engine.method != "eagle3":  # which knows nothing
        assert accepted >= {"draft_model": proposed, "ngram": 10}[engine.method]


@pytest.mark.e2e
@pytest.mark.timeout(600)
def test_sampled_output_has_the_targets_distribution(engine: Drafting, tiny: TinyModel) -> None:
    """Fails for a correct engine with probability 1.2e-5 at most: three times four p-values."""
    reference = Reference(tiny, PROMPT)
    likeliest = tiny.probabilities([[*PROMPT, token_id] for token_id in range(VOCAB_SIZE)])
    favoured = np.eye(VOCAB_SIZE)[likeliest.argmax(axis=1)]  # what a draft model might draft
    tally = Tally(engine)
    answers: list[list[int]] = []
    proposed = 0
    while len(answers) < 20 * BATCH or proposed < 5 * BATCH:
        assert len(answers) < 100 * BATCH, f"only {proposed} tokens proposed"
        answers += engine.answers([Job(PROMPT, speculating(SAMPLED))] * BATCH)
        proposed, _ = tally.take()
    sampled = np.array(answers)
    p_values = marginal_p_values(sampled, reference, Filter())
    p_values.append(conditional_p_value(sampled, reference, Filter(), favoured))
    assert min(p_values) > ALPHA


@pytest.mark.e2e
@pytest.mark.timeout(600)
@pytest.mark.parametrize("engine", ["ngram"], indirect=True)
def test_copies_are_cut_to_the_engines_room(engine: Drafting) -> None:
    """More than vLLM's `num_speculative_tokens` would end the engine."""
    jobs = [Job(prompt, GREEDY) for prompt in prompts(2, 20)]
    plain = engine.answers(jobs)
    engine.take_steps()
    with FakeRouter(engine.address, scripted(jobs, plain, noise=0.0)):
        assert engine.answers(capped(jobs, [None])) == plain
    assert max(max(step.depths.values(), default=0) for step in engine.take_steps()) == ROOM


@pytest.mark.e2e
@pytest.mark.timeout(600)
@pytest.mark.parametrize("engine", ["eagle3"], indirect=True)
def test_a_head_drafts_for_longer_requests_than_it_was_trained_on(engine: Drafting) -> None:
    jobs = [Job(prompts(1, 300, seed=9)[0], shorter(GREEDY, 30))]
    plain = engine.answers(jobs)
    engine.forget_prefixes()  # of which it has read nothing
    tally = Tally(engine)
    assert engine.answers(capped(jobs, [None])) == plain
    assert tally.take()[0] > 60


@pytest.mark.e2e
@pytest.mark.timeout(600)
@pytest.mark.parametrize("engine", ["draft_model"], indirect=True)
def test_a_draft_model_is_never_asked_of_what_it_has_missed(engine: Drafting) -> None:
    """The draft is the target, so that it is always right where it has read all tokens."""
    first, second = prompts(2, 200, seed=3)
    short = [Job(prompt, GREEDY) for prompt in prompts(3, 20, seed=4)]
    long = Job(prompts(1, 300, seed=9)[0], shorter(GREEDY, 20))

    def verified(*jobs: Job) -> int:
        tally = Tally(engine)
        engine.answers(capped(jobs, [None]))
        proposed, accepted = tally.take()
        assert proposed == accepted
        return proposed

    # The planner of these tests draws for each step whether the drafter runs, also while a prompt
    # is read: then it has missed that, until one that begins while it runs computes it anew.
    assert any(verified(Job(first, shorter(GREEDY, 40))) for _ in range(TRIES))
    engine.answers([Job(second, speculating(shorter(GREEDY, 1), 0))])  # cached, and not drafted
    assert verified(Job(second, shorter(GREEDY, 40))) == 0
    assert any(verified(Job(second, shorter(GREEDY, 40))) for _ in range(TRIES))
    # Beside a request that is too long for it vLLM does not run it at all.
    verified(long, *short)


@pytest.mark.e2e
@pytest.mark.timeout(600)
def test_requests_without_speculation_verify_nothing(engine: Drafting) -> None:
    before = engine.stats().sources
    engine.answers([Job(prompt, speculating(GREEDY, 0)) for prompt in prompts(4, 20)])
    assert engine.stats().sources == before
