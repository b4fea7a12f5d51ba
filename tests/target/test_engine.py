"""Greedy output with specray's plug-ins in vLLM is the output without speculation."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from vllm import SamplingParams

from specray.types import SessionFrame, SourceStats
from tests.saboteur import Saboteur
from tests.target.drafts import Disturbance, Disturbed, Frozen, ScriptedAhead
from tests.target.engine import (
    MAX_DEPTH,
    Engine,
    FakeRouter,
    Job,
    specray_engine,
)
from tests.target.identity import (
    CAPS,
    Tally,
    accepted_by_source,
    assert_same,
    capped,
    deepest_of,
    prompts,
    scripted,
    shorter,
)
from tests.target.sources import DISTURBED, KINDS, Sources, followers, served
from tests.target.tiny_model import VOCAB_SIZE, TinyModel

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

BLOCK_SIZE = 32
SMALL = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "num_gpu_blocks_override": 48}
FEW = list(range(10, 22))  # tokens
GREEDY = SamplingParams(temperature=0, max_tokens=150, ignore_eos=True)


@pytest.fixture(scope="module")
def engine(tiny_folder: Path) -> Iterator[Engine]:
    with specray_engine(tiny_folder, **SMALL) as engine:
        yield engine


@pytest.fixture(scope="module")
def jobs() -> list[Job]:
    return [Job(prompt, GREEDY) for prompt in prompts(len(CAPS), 20)]


@pytest.fixture(scope="module")
def answers(engine: Engine, jobs: list[Job]) -> list[list[int]]:
    """Without speculation, in two halves so that none is preempted."""
    answers = engine.answers(jobs[:4]) + engine.answers(jobs[4:])
    assert all(len(set(answer)) > 30 for answer in answers)  # no loops, which would hide faults
    return answers


def test_perfect_draft_is_accepted_whole(
    engine: Engine, tiny: TinyModel, jobs: list[Job], answers: list[list[int]]
) -> None:
    tally, before = Tally(engine), sum(engine.stats().calibration.num_tokens)
    with FakeRouter(engine.address, scripted(jobs, answers, noise=0.0)):
        assert_same(tiny, jobs, answers, engine.answers(capped(jobs)))
    proposed, accepted = tally.take()
    assert proposed == accepted > len(jobs) * 50
    learnt = sum(engine.stats().calibration.num_tokens) - before
    assert learnt >= proposed - len(jobs) * MAX_DEPTH  # but for the last step's
    assert engine.stats().num_open_sessions == 0


def test_depth_caps_hold_for_each_request(
    engine: Engine, jobs: list[Job], answers: list[list[int]]
) -> None:
    engine.take_steps()
    with FakeRouter(engine.address, scripted(jobs, answers, noise=0.0)):
        outputs = engine.run(capped(jobs))
    steps = engine.take_steps()
    deepest = deepest_of(steps, outputs)
    assert deepest == [MAX_DEPTH if cap is None else cap for cap in CAPS]
    assert any(len(set(step.depths.values())) > 3 for step in steps)  # in one batch


@pytest.mark.parametrize("noise", [1.0, 0.4, 0.2])
def test_rejected_tokens_are_rolled_back_across_blocks(
    engine: Engine, tiny: TinyModel, jobs: list[Job], answers: list[list[int]], noise: float
) -> None:
    tally = Tally(engine)
    with FakeRouter(engine.address, scripted(jobs, answers, noise)):
        assert_same(tiny, jobs, answers, engine.answers(capped(jobs)))
    proposed, accepted = tally.take()
    assert sum(step.num_crossed for step in engine.take_steps()) >= 1
    assert 1 - accepted / proposed > 0.02
    assert accepted > 0 or noise == 1.0


def test_saboteur(
    engine: Engine, tiny: TinyModel, jobs: list[Job], answers: list[list[int]]
) -> None:
    before = engine.stats()
    with (
        engine.configured(max_wait_ms=5.0),  # it makes every step wait
        FakeRouter(engine.address, Saboteur(vocab_size=VOCAB_SIZE)),
    ):
        for _ in range(2):
            assert_same(tiny, jobs, answers, engine.answers(capped(jobs)))
    after = engine.stats()
    assert after.num_proposals_used > before.num_proposals_used
    assert after.num_proposals_stale > before.num_proposals_stale
    assert after.num_proposals_invalid > before.num_proposals_invalid
    assert after.num_open_sessions == 0


class Halves(NamedTuple):
    """Requests, and others that may answer with few tokens only, so that much repeats itself."""

    free: list[Job]
    few: list[Job]

    def answers(self, engine: Engine, caps: Sequence[int | None] | None = None) -> list[list[int]]:
        """One after the other: vLLM 0.29.0 may take the few of one request for another's too."""
        jobs = [half if caps is None else capped(half, caps) for half in self]
        return [answer for half in jobs for answer in engine.answers(half)]


@pytest.fixture(scope="module")
def halves() -> Halves:
    few = GREEDY.clone()
    few.allowed_token_ids = FEW
    free = [Job(prompt, GREEDY) for prompt in prompts(4, 20, seed=6)]
    return Halves(free, [replace(job, params=few) for job in free])


@pytest.fixture(scope="module")
def halves_answers(engine: Engine, halves: Halves) -> list[list[int]]:
    return halves.answers(engine)


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_draft(
    engine: Engine,
    tiny: TinyModel,
    sources: Sources,
    halves: Halves,
    halves_answers: list[list[int]],
    name: str,
) -> None:
    """Run by a draft's service, which drafts ahead as it has time."""
    before = accepted_by_source(engine)
    proposer = sources.proposer(KINDS[name], followers(halves_answers))
    with served(proposer) as draft, FakeRouter(engine.address, draft):
        got = halves.answers(engine, (None, 5, 3, None))
    assert_same(tiny, [*halves.free, *halves.few], halves_answers, got)
    accepted = accepted_by_source(engine) - before
    assert {source for source, num in accepted.items() if num > 30} == KINDS[name].sources


@DISTURBED
def test_a_draft_whose_proposals_are_lost_repeated_late_and_out_of_order(
    engine: Engine,
    tiny: TinyModel,
    sources: Sources,
    halves: Halves,
    halves_answers: list[list[int]],
    name: str,
    disturbs_commits: bool,
) -> None:
    """Those that it drafts ahead, too; and what it is told of requests."""
    frames: Disturbance[SessionFrame] | None = Disturbance() if disturbs_commits else None
    before, accepted_before = engine.stats(), accepted_by_source(engine)
    engine.take_steps()
    proposer = sources.proposer(KINDS[name], followers(halves_answers))
    with (
        served(proposer) as draft,
        engine.configured(max_wait_ms=25.0),  # what is lost is waited for
        FakeRouter(engine.address, draft, disturbance=Disturbance(), frames=frames),
    ):
        got = halves.answers(engine, (None, 5, 3, None))
        num_rejected = draft.stats().num_rejected
    assert_same(tiny, [*halves.free, *halves.few], halves_answers, got)
    after, accepted = engine.stats(), accepted_by_source(engine) - accepted_before
    assert {source for source, num in accepted.items() if num > 10} == KINDS[name].sources
    # Of 15 or so where commits are lost, with most sessions; of a hundred elsewhere.
    assert sum(step.num_ahead for step in engine.take_steps()) > 0
    assert disturbs_commits <= (num_rejected > 0)
    assert after.num_late + after.num_absent > before.num_late + before.num_absent
    assert after.num_open_sessions == 0


def test_copies_from_the_requests_own_text(
    engine: Engine, tiny: TinyModel, jobs: list[Job], answers: list[list[int]]
) -> None:
    """Where the draft is silent, or its answer is late; prompts hold parts of the answers."""
    few = GREEDY.clone()
    few.allowed_token_ids = FEW[:2]  # whatever the machine's arithmetic, much repeats itself
    told = [
        Job((*job.prompt, *answer[:60], *job.prompt), few)
        for job, answer in zip(jobs, answers, strict=True)
    ]
    plain = engine.answers(told[:4]) + engine.answers(told[4:])
    before = engine.stats().sources.get("stop_gap", SourceStats())
    with (
        engine.configured(max_wait_ms=5.0, has_stop_gap=True),
        FakeRouter(engine.address, Frozen(num_rounds=0)),
    ):
        assert_same(tiny, told, plain, engine.answers(capped(told)))
    after = engine.stats().sources["stop_gap"]
    assert after.num_proposed - before.num_proposed > 20  # fewer where they do not pay
    assert after.num_accepted > before.num_accepted


@pytest.mark.parametrize("is_disturbed", [False, True], ids=["in order", "disturbed"])
def test_drafted_ahead(
    engine: Engine,
    tiny: TinyModel,
    jobs: list[Job],
    answers: list[list[int]],
    is_disturbed: bool,
) -> None:
    """Disturbed: with proposals lost, repeated, late and out of order."""
    before, tally = engine.stats(), Tally(engine)
    draft = scripted(jobs, answers, 0.2, ScriptedAhead)
    with (
        engine.configured(max_wait_ms=5.0),
        FakeRouter(engine.address, Disturbed(draft) if is_disturbed else draft),
    ):
        assert_same(tiny, jobs, answers, engine.answers(capped(jobs)))
    after = engine.stats()
    assert after.num_hits - before.num_hits > 100
    assert is_disturbed <= (after.num_late + after.num_absent > before.num_late + before.num_absent)
    proposed, accepted = tally.take()
    assert 0 < accepted < proposed
    assert after.num_open_sessions == 0


def test_draft_dies_and_another_takes_over(
    engine: Engine, tiny: TinyModel, jobs: list[Job], answers: list[list[int]]
) -> None:
    first, second = (scripted(jobs, answers, noise=0.2) for _ in range(2))
    with FakeRouter(engine.address, first, second, num_frames=20):
        assert_same(tiny, jobs, answers, engine.answers(capped(jobs)))
    assert second.opened
    assert all(len(opened.token_ids) > opened.num_prompt_tokens for opened in second.opened)
    assert second.num_proposed > 0


def test_draft_dies_and_none_takes_over(
    engine: Engine, tiny: TinyModel, jobs: list[Job], answers: list[list[int]]
) -> None:
    draft = scripted(jobs, answers, noise=0.2)
    with FakeRouter(engine.address, draft, num_frames=20):
        assert_same(tiny, jobs, answers, engine.answers(capped(jobs)))
    assert draft.num_proposed > 0
    assert engine.stats().num_routers == 0


def test_frozen_draft_costs_a_few_waits(
    engine: Engine, tiny: TinyModel, jobs: list[Job], answers: list[list[int]]
) -> None:
    draft = Frozen(num_rounds=20)
    draft.answers = scripted(jobs, answers, 0.0).answers
    before = engine.stats()
    with FakeRouter(engine.address, draft):
        assert_same(tiny, jobs, answers, engine.answers(capped(jobs)))
    after = engine.stats()
    assert after.num_misses > before.num_misses
    num_waits = after.wait_time.count - before.wait_time.count
    assert num_waits <= draft.num_rounds + 2 * len(jobs)


def test_aborted_request_closes_its_session(
    engine: Engine, tiny: TinyModel, jobs: list[Job], answers: list[list[int]]
) -> None:
    draft = scripted(jobs, answers, noise=0.3)
    leaving = [replace(job, abort_at=30) if i % 2 else job for i, job in enumerate(capped(jobs))]
    with FakeRouter(engine.address, draft):
        got = engine.answers(leaving)
    assert_same(tiny, jobs[::2], answers[::2], got[::2])
    for plain, cut in zip(answers[1::2], got[1::2], strict=True):
        assert 30 <= len(cut) < len(plain)
        assert cut == plain[: len(cut)]
    assert engine.stats().num_open_sessions == 0


def test_long_prompts_arrive_in_chunks_while_others_decode(
    engine: Engine, tiny: TinyModel, jobs: list[Job], answers: list[list[int]]
) -> None:
    long = [Job(p, shorter(GREEDY, 20), 100) for p in prompts(3, 200, seed=1)]
    expected = [*answers[:3], *engine.answers([replace(job, start=0) for job in long])]
    engine.forget_prefixes()
    both = [*jobs[:3], *long]
    tally = Tally(engine)
    with FakeRouter(engine.address, scripted(both, expected, noise=0.3)):
        assert_same(tiny, both, expected, engine.answers(capped(both, (None, 3))))
    steps = engine.take_steps()
    assert sum(step.num_chunks > 0 and any(step.depths.values()) for step in steps) >= 3
    assert tally.take()[1] > 0


def test_a_seed_says_the_same_however_a_prompt_is_read(engine: Engine) -> None:
    """On the CPU vLLM's engine would end at the first part of such a prompt."""
    params = SamplingParams(temperature=1.0, seed=7, max_tokens=60, ignore_eos=True)
    jobs = [Job(prompt, params) for prompt in prompts(4, 60, seed=8)]
    engine.take_steps()  # those before
    expected = [engine.answers([job])[0] for job in jobs]
    assert not any(step.num_chunks for step in engine.take_steps())
    engine.forget_prefixes()
    assert engine.answers(jobs) == expected
    assert any(step.num_chunks for step in engine.take_steps())  # how many hangs on when they come


def test_full_prefix_cache_hit_while_others_decode(
    engine: Engine, tiny: TinyModel, jobs: list[Job], answers: list[list[int]]
) -> None:
    length = 4 * BLOCK_SIZE + 1  # a hit leaves one token to compute: vLLM takes it for a decode
    prompt = prompts(1, length, seed=2)[0]
    cold = Job(prompt, shorter(GREEDY, 40))
    both = [*jobs[:3], *(replace(cold, start=start) for start in (30, 60, 90))]
    expected = [*answers[:3], *engine.answers([cold]) * 3]
    engine.take_steps()
    with FakeRouter(engine.address, scripted(both, expected, noise=0.3)):
        outputs = engine.run(capped(both, (None, 4, 2, None, 0, 0)))
    assert_same(tiny, both, expected, [list(o.outputs[0].token_ids) for o in outputs])
    assert [o.num_cached_tokens for o in outputs[3:]] == [length - 1] * 3
    deepest = deepest_of(engine.take_steps(), outputs)
    assert min(deepest[:4]) > 0
    assert deepest[4:] == [0, 0]  # not padded with draft tokens that nobody proposed


def test_requests_that_queue_for_a_place_do_not_stop_speculation(
    engine: Engine, tiny: TinyModel
) -> None:
    jobs = [Job(prompt, shorter(GREEDY, 100)) for prompt in prompts(24, 20, seed=4)]
    expected = engine.answers(jobs)
    tally = Tally(engine)
    with FakeRouter(engine.address, scripted(jobs, expected, noise=0.0)):
        assert_same(tiny, jobs, expected, engine.answers(capped(jobs, (None,))))
    assert tally.take()[1] > 0.6 * len(jobs) * 100


@pytest.mark.parametrize("noise", [0.0, 0.4])
def test_preempted_requests(engine: Engine, tiny: TinyModel, noise: float) -> None:
    params = shorter(GREEDY, 240)
    jobs = [Job(prompt, params) for prompt in prompts(8, 30, seed=3)]
    expected = list(itertools.chain(*(engine.answers(jobs[i : i + 4]) for i in (0, 4))))
    before = engine.metric("vllm:num_preemptions")
    tally = Tally(engine)
    with FakeRouter(engine.address, scripted(jobs, expected, noise)):
        assert_same(tiny, jobs, expected, engine.answers(capped(jobs, (None, 3))))
    assert engine.metric("vllm:num_preemptions") > before
    assert tally.take()[1] > 100
