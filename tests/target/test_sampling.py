"""Sampled output has the target's distribution, through vLLM's own rejection sampler.

All tests of this file together fail for a correct engine with probability 2e-4 at most: each of
their fewer than 200 p-values must reach ALPHA. The power checks show that faults give less.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind

from specray.draft.service import DraftService
from specray.types import Proposal, SessionFrame
from tests.models.test_ngrams import write_ngrams
from tests.target.distributions import (
    Filter,
    Reference,
    conditional_p_value,
    marginal_p_values,
)
from tests.target.drafts import BriefAhead, Distorted, DistortedAhead, Disturbance, Disturbed
from tests.target.engine import (
    ROUTER,
    Engine,
    FakeRouter,
    Job,
    specray_engine,
    speculating,
)
from tests.target.identity import Tally, accepted_by_source, prompts
from tests.target.plugins import CREDULOUS, STEP_ARG, STEP_S
from tests.target.sources import DISTURBED, KINDS, Sources, followers, served
from tests.target.tiny_model import VOCAB_SIZE, TinyModel

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

ALPHA = 1e-6
NUM_TOKENS = 6
BATCH = 64  # at once; the next begins when all have ended, since prefills don't wait
PLAIN = Filter()
PROMPT = prompts(1, 8, seed=5)[0]
PATIENCE = 6  # times as many requests as are wanted, where the machine is busy
FEW = list(range(10, 14))  # tokens; where there are no others much repeats itself
REPETITIVE = tuple(np.random.default_rng(6).choice(FEW, 24).tolist())
NO_DISTRIBUTIONS = 4  # the depth cap of requests whose tokens come without distributions


@pytest.fixture(scope="module")
def engine(
    tiny_folder: Path, tiny: TinyModel, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    p = tiny.probabilities([[*PROMPT, token_id] for token_id in range(VOCAB_SIZE)])
    likeliest = {(i,): {int(row.argmax()): float(row.max())} for i, row in enumerate(p)}
    ngrams = write_ngrams(tmp_path_factory.mktemp("ngrams"), likeliest)
    options = {"max_num_seqs": BATCH, "num_gpu_blocks_override": 300}
    with specray_engine(tiny_folder, ngrams=ngrams, **options) as engine:
        yield engine


@pytest.fixture(scope="module")
def reference(tiny: TinyModel) -> Reference:
    return Reference(tiny, PROMPT)


def sampled(keep: Filter = PLAIN, **options: object) -> SamplingParams:
    return SamplingParams(
        temperature=keep.temperature,
        top_k=keep.top_k,
        top_p=keep.top_p,
        max_tokens=NUM_TOKENS,
        ignore_eos=True,
        output_kind=RequestOutputKind.FINAL_ONLY,
        **options,
    )


def p_values(
    answers: NDArray[np.int64],
    reference: Reference,
    keep: Filter,
    q: NDArray[np.float64],  # [vocab, vocab]: what the draft favours, by the last token
) -> list[float]:
    conditional = conditional_p_value(answers, reference, keep, q)
    return [*marginal_p_values(answers, reference, keep), conditional]


class Run(NamedTuple):
    answers: NDArray[np.int64]  # [requests, tokens]
    acceptance_rate: float


def run(
    engine: Engine,
    draft: Distorted | Disturbed | DraftService,
    params: SamplingParams,
    num_requests: int = 20 * BATCH,
    router: str = ROUTER,
    prompt: tuple[int, ...] = PROMPT,
    disturbance: Disturbance[Proposal] | None = None,
    frames: Disturbance[SessionFrame] | None = None,
    batch: int = BATCH,
    step_s: float = 0.0,
) -> Run:
    """The same request many times, and more where few proposals come in time."""
    params = speculating(params, router=router, **{STEP_ARG: step_s})
    tally = Tally(engine)
    proposed = accepted = 0
    answers: list[list[int]] = []
    with FakeRouter(engine.address, draft, name=router, disturbance=disturbance, frames=frames):
        while len(answers) < num_requests or proposed <= num_requests:
            assert len(answers) < PATIENCE * num_requests, f"only {proposed} tokens proposed"
            answers += engine.answers([Job(prompt, params)] * batch)
            proposed, accepted = tally.take()
    return Run(np.array(answers), accepted / proposed)


def test_one_setting(engine: Engine, tiny: TinyModel, reference: Reference) -> None:
    draft = Distorted(tiny, PROMPT)
    answers, acceptance_rate = run(engine, draft, sampled())
    assert min(p_values(answers, reference, PLAIN, draft.dense())) > ALPHA
    assert 0.15 < acceptance_rate < 0.85


@pytest.mark.parametrize(
    ("name", "keep"),
    [
        ("ngram", Filter(top_k=10)),
        ("model", Filter(top_p=0.9)),
        ("other tokenizer", PLAIN),
        ("hybrid", Filter(0.7, 20)),
        ("hybrid, n-grams", Filter(top_k=20)),
        ("hybrid, other tokenizer", Filter(0.8)),
    ],
)
def test_every_kind_of_draft(
    engine: Engine,
    tiny: TinyModel,
    reference: Reference,
    sources: Sources,
    name: str,
    keep: Filter,
) -> None:
    """Run by a draft's service; all that they ship is believed."""
    # A model behind n-grams is heard only where a step gives it time to draft ahead.
    has_quick = KINDS[name].sources >= {"ngram", "model"}
    q = sources.draft().probabilities([[*PROMPT, token_id] for token_id in range(VOCAB_SIZE)])
    before = accepted_by_source(engine)
    with served(sources.proposer(KINDS[name], q)) as draft:
        answers, acceptance_rate = run(
            engine,
            draft,
            sampled(keep),
            router=CREDULOUS,
            batch=16 if has_quick else BATCH,
            step_s=STEP_S if has_quick else 0.0,
        )
    if KINDS[name].has_other_tokenizer:
        q[:, sources.missing] = 0.0
    assert min(p_values(answers, reference, keep, q)) > ALPHA
    assert acceptance_rate > 0.12
    accepted = accepted_by_source(engine) - before
    sources_of_it = KINDS[name].sources - {"prompt_lookup"}  # answers are too short for copies
    assert all(accepted[source] > BATCH for source in sources_of_it), accepted


@DISTURBED
def test_a_draft_whose_proposals_are_lost_repeated_late_and_out_of_order(
    engine: Engine,
    tiny: TinyModel,
    reference: Reference,
    sources: Sources,
    name: str,
    disturbs_commits: bool,
) -> None:
    """Those that it drafts ahead, too; and what it is told of requests."""
    engine.take_steps()  # those before
    frames: Disturbance[SessionFrame] | None = Disturbance() if disturbs_commits else None
    q = sources.draft().probabilities([[*PROMPT, token_id] for token_id in range(VOCAB_SIZE)])
    with (
        served(sources.proposer(KINDS[name], q)) as draft,
        engine.configured(max_wait_ms=25.0),  # what is lost is waited for
    ):
        answers, acceptance_rate = run(
            engine,
            draft,
            sampled(),
            router=CREDULOUS,
            disturbance=Disturbance(),
            frames=frames,
            batch=32,
            step_s=STEP_S,
        )
        num_rejected = draft.stats().num_rejected
    assert min(p_values(answers, reference, PLAIN, q)) > ALPHA
    assert sum(step.num_ahead for step in engine.take_steps()) > BATCH
    assert acceptance_rate > 0.12
    assert disturbs_commits <= (num_rejected > 0)


@pytest.mark.parametrize("name", ["prompt_lookup", "hybrid"])
def test_copies(engine: Engine, tiny: TinyModel, sources: Sources, name: str) -> None:
    q = followers([REPETITIVE])
    before = accepted_by_source(engine)
    params = sampled(allowed_token_ids=FEW)
    with served(sources.proposer(KINDS[name], q)) as draft:
        answers, _ = run(engine, draft, params, 16 * BATCH, CREDULOUS, REPETITIVE)
    assert min(p_values(answers, Reference(tiny, REPETITIVE, FEW), PLAIN, q)) > ALPHA
    assert (accepted_by_source(engine) - before)["prompt_lookup"] > 3 * BATCH


def test_guesses_of_the_target_behind_drawn_tokens(
    engine: Engine, tiny: TinyModel, reference: Reference
) -> None:
    """What is guessed, and how far, depends on the token that was drawn before."""
    draft, keep = BriefAhead(tiny, PROMPT, fan_out=16), Filter(top_k=4)
    with engine.configured(has_stop_gap=True):
        answers, _ = run(engine, draft, sampled(keep), 16 * BATCH, batch=12, step_s=STEP_S)
    assert min(p_values(answers, reference, keep, draft.dense())) > ALPHA
    assert draft.num_continued > 20  # steps that accepted a guess behind a drawn token


@pytest.mark.parametrize("is_disturbed", [False, True], ids=["in order", "disturbed"])
def test_drafted_ahead(
    engine: Engine, tiny: TinyModel, reference: Reference, is_disturbed: bool
) -> None:
    """Disturbed: with proposals lost, repeated, late and out of order."""
    engine.take_steps()  # those before
    draft = DistortedAhead(tiny, PROMPT)
    disturbed = Disturbed(draft) if is_disturbed else draft
    with engine.configured(max_wait_ms=25.0):  # what is lost is waited for
        answers, _ = run(engine, disturbed, sampled())
    assert min(p_values(answers, reference, PLAIN, draft.dense())) > ALPHA
    assert sum(step.num_ahead for step in engine.take_steps()) > 4 * BATCH  # of 500 and more


def test_distributions_are_used_and_point_masses_are_exact_too(
    engine: Engine, tiny: TinyModel, reference: Reference
) -> None:
    draft = Distorted(tiny, PROMPT)
    draft.keeps_distributions = lambda _: False
    answers, without = run(engine, draft, sampled())
    assert min(p_values(answers, reference, PLAIN, draft.dense())) > ALPHA
    assert (
        run(engine, Distorted(tiny, PROMPT), sampled(), 8 * BATCH).acceptance_rate > 1.5 * without
    )


def test_a_wrong_distribution_shows(engine: Engine, tiny: TinyModel, reference: Reference) -> None:
    """The power check, of as many requests as the tests have.

    A draft that ships other distributions than it draws from is believed.
    """
    liar = Distorted(tiny, PROMPT, lies=True)
    answers, _ = run(engine, liar, sampled(), router=CREDULOUS)
    first, *others = p_values(answers, reference, PLAIN, liar.dense())
    assert first > ALPHA  # it comes from the prefill, without a draft
    assert min(others) < ALPHA**2


def test_a_wrong_distribution_is_no_longer_used_once_it_is_found_out(
    engine: Engine, tiny: TinyModel, reference: Reference
) -> None:
    liar = Distorted(tiny, PROMPT, lies=True)
    run(engine, liar, sampled(), 4 * BATCH, router="liar")
    answers, _ = run(engine, liar, sampled(), router="liar")
    assert min(p_values(answers, reference, PLAIN, liar.dense())) > ALPHA


MIXED = {
    "plain": (PLAIN, None, {}),
    "top_p": (Filter(top_p=0.9), None, {}),
    "top_k": (Filter(top_k=10), None, {}),
    "all": (Filter(0.7, 20, 0.9), None, {}),
    "hot": (Filter(1.4), 1, {}),
    "depth 2": (PLAIN, 2, {}),
    "depth 0": (PLAIN, 0, {}),
    "point masses": (PLAIN, NO_DISTRIBUTIONS, {}),
    "n": (PLAIN, None, {"n": 3}),
    "seed": (PLAIN, None, {"seed": 0}),
    "greedy": (PLAIN, None, {}),
}


class Mixed(NamedTuple):
    answers: dict[str, NDArray[np.int64]]
    greedy: list[int]
    draft: Distorted


@pytest.fixture(scope="module")
def mixed(engine: Engine, tiny: TinyModel) -> Mixed:
    """Requests of all settings in the same batches, in random order."""
    names = np.random.default_rng(0).permutation(np.repeat(list(MIXED), 500)).tolist()
    draft = Distorted(tiny, PROMPT)
    draft.keeps_distributions = lambda session: session.opened.depth != NO_DISTRIBUTIONS
    greedy = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    plain = engine.answers([Job(PROMPT, greedy)])[0]
    jobs = []
    for i, name in enumerate(names):
        keep, depth, options = MIXED[name]
        options = {"seed": i} if "seed" in options else options
        params = greedy if name == "greedy" else sampled(keep, **options)
        jobs.append(Job(PROMPT, speculating(params, depth)))
    tally = Tally(engine)
    with FakeRouter(engine.address, draft):
        batches = (jobs[i : i + BATCH] for i in range(0, len(jobs), BATCH))
        outputs = [output for batch in batches for output in engine.run(batch)]
    proposed, accepted = tally.take()
    assert proposed > 1.5 * len(jobs)
    assert accepted / proposed > 0.2  # 0.26; with the distributions of other requests 0.14
    answers: dict[str, list[list[int]]] = {name: [] for name in MIXED}
    for name, output in zip(names, outputs, strict=True):
        answers[name] += [list(completion.token_ids) for completion in output.outputs]
    return Mixed({name: np.array(a) for name, a in answers.items()}, plain, draft)


@pytest.mark.parametrize("name", [name for name in MIXED if name != "greedy"])
def test_settings_mixed_in_a_batch(mixed: Mixed, reference: Reference, name: str) -> None:
    keep = MIXED[name][0]
    assert min(p_values(mixed.answers[name], reference, keep, mixed.draft.dense())) > ALPHA


def test_greedy_requests_among_sampled_ones(mixed: Mixed) -> None:
    assert (mixed.answers["greedy"] == mixed.greedy).all()


def test_logprobs_of_sampled_tokens(engine: Engine, tiny: TinyModel, reference: Reference) -> None:
    with FakeRouter(engine.address, Distorted(tiny, PROMPT)):
        outputs = engine.run([Job(PROMPT, speculating(sampled(logprobs=0)))] * 100)
    answers = np.array([output.outputs[0].token_ids for output in outputs])
    for position in range(NUM_TOKENS):
        p = reference.conditional(answers, position, PLAIN)
        for output, row in zip(outputs, p, strict=True):
            token_id = output.outputs[0].token_ids[position]
            entry = output.outputs[0].logprobs[position][token_id]
            assert entry.logprob == pytest.approx(np.log(row[token_id]), abs=1e-3)
