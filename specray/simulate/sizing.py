"""How many drafts, how deep, and when not at all: trials of one deployment under many loads."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from specray.control.roofline import StepLoad
from specray.simulate.agreement import AgreementModel
from specray.simulate.arrivals import (
    Arrival,
    Bursty,
    Diurnal,
    Lengths,
    Pattern,
    Poisson,
    draw_arrivals,
)
from specray.simulate.cluster import ClusterSettings, simulate
from specray.simulate.requests import make_requests
from specray.simulate.summary import Summary, summarise
from specray.types import FixedRule

System = Literal["off", "specray", "fixed"]
PatternName = Literal["poisson", "bursty", "diurnal"]

_REQUESTS_PER_TRIAL = 100
_LONGEST_S = 90.0
_LIFETIMES = 4  # of an undisturbed request, at least, in a trial
_FILLING_LIFETIMES = 2  # of one among the others, before what counts begins
_LOADED_LIFETIMES = 4  # of such a one, at least, that count
_SETTLES = 50  # rounds of a request's lifetime and the number that are there at a time
_MOST_PREFILL = 0.8  # of the time, in that
_IS_AS_GOOD = 0.97  # a smaller pool is preferred down to this share of the best speed
_PAYS_FROM = 1.03  # speed-ups below are noise, and a draft GPU is not


@dataclass(frozen=True, slots=True)
class Prices:
    """US dollars per GPU and hour."""

    target_gpu: float
    draft_gpu: float


@dataclass(frozen=True, slots=True)
class Scenario:
    """A deployment and its users; what differs between trials is left out or replaced."""

    cluster: ClusterSettings
    gpus_per_target: float
    gpus_per_draft: float
    lengths: Lengths  # of what is replayed, too
    agreement: AgreementModel
    prices: Prices
    pattern: PatternName = "poisson"
    replayed: tuple[Arrival, ...] = ()  # over and over, instead of a pattern
    num_cached: int = 0  # of each prompt's tokens
    seconds: float | None = None  # of each trial; None: long enough
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Trial:
    """One load on one way to serve it."""

    qps: float
    system: System
    num_drafts: int = 0
    depth: int | None = None  # of a fixed depth


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a trial."""

    trial: Trial
    seconds: float  # that count
    summary: Summary
    usd_per_million: float | None  # answer tokens; None when there were none


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do at one load."""

    qps: float
    num_drafts: int  # 0: better off without speculation
    depth: float  # mean draft tokens per request and step
    best_fixed_depth: int | None  # None: none was tried
    speedup: float  # over serving without speculation
    usd_per_million: float | None
    usd_per_million_off: float | None
    keeps_up: bool
    reason: str


class _Load(NamedTuple):
    arrivals: tuple[Arrival, ...]
    from_s: float
    until_s: float


def trials(qps: Sequence[float], drafts: Sequence[int], depths: Sequence[int]) -> Iterator[Trial]:
    """All that is worth comparing: off, ours with each pool, fixed depths with the largest."""
    for load in qps:
        yield Trial(load, "off")
        for num_drafts in drafts:
            yield Trial(load, "specray", num_drafts)
        for depth in depths:
            yield Trial(load, "fixed", max(drafts), depth)


def recorded_qps(scenario: Scenario) -> float:
    """The load of a recording that begins again a mean gap after its last request.

    One that is shorter than a request takes tells how many come together, but not how often: it
    begins again when they are answered.
    """
    num = len(scenario.replayed)
    length_s = scenario.replayed[-1].at_s - scenario.replayed[0].at_s
    life_s = _lifetime_s(scenario, scenario.lengths.answer)
    return num / max(length_s * num / max(1, num - 1), life_s)


def run_trial(scenario: Scenario, trial: Trial) -> Outcome:
    """Simulate one trial; equal arguments give equal outcomes."""
    load = _make_load(scenario, trial.qps)
    requests = make_requests(load.arrivals, scenario.agreement, scenario.num_cached, scenario.seed)
    cluster = _cluster(scenario.cluster, trial)
    run = simulate(cluster, requests, until_s=load.until_s, seed=scenario.seed)
    summary = summarise(run, load.from_s, load.until_s)
    return Outcome(trial, load.until_s - load.from_s, summary, _cost(scenario, trial, summary))


def advise(outcomes: Sequence[Outcome]) -> list[Advice]:
    """What the trials of each load speak for."""
    loads = sorted({outcome.trial.qps for outcome in outcomes})
    return [_advise([o for o in outcomes if o.trial.qps == load]) for load in loads]


def least_s(scenario: Scenario, qps: float) -> float:
    """Seconds that a trial has to have: in fewer hardly an answer that begins ends, too."""
    alone_s = _lifetime_s(scenario, scenario.lengths.answer)
    return max(_LIFETIMES * alone_s, _LOADED_LIFETIMES * _loaded_lifetime_s(scenario, qps))


def speedup(off: Summary, other: Summary) -> float:
    """Tokens per second of a request while both keep up; of the cluster when one does not."""
    if off.keeps_up and other.keeps_up and off.mean_tpot_s and other.mean_tpot_s:
        return off.mean_tpot_s / other.mean_tpot_s
    return other.tokens_per_s / off.tokens_per_s if off.tokens_per_s else 1.0


def capacity(outcomes: Sequence[Outcome], trial: Trial, tpot_s: float | None) -> float | None:
    """The highest load that was tried at which such a trial keeps up; None if it never does.

    Args:
        outcomes: of all trials.
        trial: the system, whatever its load.
        tpot_s: also the p95 of the time per token must not exceed this.
    """
    kept = [
        outcome.trial.qps
        for outcome in outcomes
        if replace(outcome.trial, qps=trial.qps) == trial
        and outcome.summary.keeps_up
        and (tpot_s is None or (outcome.summary.tpot_s.p95 or 0.0) <= tpot_s)
    ]
    return max(kept, default=None)


def _advise(outcomes: Sequence[Outcome]) -> Advice:
    off = next(o for o in outcomes if o.trial.system == "off")
    ours = sorted(
        (o for o in outcomes if o.trial.system == "specray"), key=lambda o: o.trial.num_drafts
    )
    fixed = [o for o in outcomes if o.trial.system == "fixed"]
    speeds = [speedup(off.summary, outcome.summary) for outcome in ours]
    best = max(speeds)
    chosen = next(i for i, speed in enumerate(speeds) if speed >= _IS_AS_GOOD * best)
    deepest = max(fixed, key=lambda o: speedup(off.summary, o.summary), default=None)
    pays = speeds[chosen] >= _PAYS_FROM
    taken = ours[chosen] if pays else off
    return Advice(
        qps=off.trial.qps,
        num_drafts=taken.trial.num_drafts,
        depth=taken.summary.mean_depth,
        best_fixed_depth=deepest.trial.depth if deepest else None,
        speedup=speeds[chosen] if pays else 1.0,
        usd_per_million=taken.usd_per_million,
        usd_per_million_off=off.usd_per_million,
        keeps_up=taken.summary.keeps_up,
        reason=_reason(speeds[chosen], taken.summary),
    )


def _reason(speed: float, taken: Summary) -> str:
    if speed < _PAYS_FROM:
        return f"off: speculation brings {speed:.2f}, below {_PAYS_FROM}"
    if not taken.keeps_up:
        return "more than these targets can take"
    if taken.draft_busy > 0.9:
        return "drafts are full"
    return "on"


def _cluster(base: ClusterSettings, trial: Trial) -> ClusterSettings:
    policy = replace(base.target.policy, is_enabled=trial.system != "off")
    if trial.depth is not None:
        policy = replace(policy, depth_rule=FixedRule(depth=trial.depth))
    target = replace(base.target, policy=policy)
    return replace(base, target=target, num_drafts=trial.num_drafts)


def _make_load(scenario: Scenario, qps: float) -> _Load:
    if scenario.replayed:
        return _replay(scenario, qps)
    from_s = _FILLING_LIFETIMES * _loaded_lifetime_s(scenario, qps)
    longest_s = min(_LONGEST_S, _REQUESTS_PER_TRIAL / qps)
    counted_s = scenario.seconds or max(least_s(scenario, qps), longest_s)
    pattern = _pattern(scenario.pattern, qps, counted_s)
    if isinstance(pattern, Bursty | Diurnal):  # of parts of a period the load is another
        counted_s = math.ceil(counted_s / pattern.period_s) * pattern.period_s
    arrivals = draw_arrivals(pattern, scenario.lengths, from_s + counted_s, scenario.seed)
    return _Load(arrivals, from_s, from_s + counted_s)


def _replay(scenario: Scenario, qps: float) -> _Load:
    """Whole rounds of a recording count, from its start, in a cluster that earlier ones filled."""
    first_s = scenario.replayed[0].at_s
    longest = max(arrival.num_answer_tokens for arrival in scenario.replayed)
    share = longest / scenario.lengths.answer
    from_s = _FILLING_LIFETIMES * share * _loaded_lifetime_s(scenario, qps)
    round_s = len(scenario.replayed) / qps
    counted_s = scenario.seconds or math.ceil(least_s(scenario, qps) / round_s) * round_s
    until_s = from_s + counted_s
    arrivals = sorted(
        arrival._replace(at_s=from_s + number * round_s + (arrival.at_s - first_s))
        for number in range(-math.ceil(from_s / round_s), math.ceil((until_s - from_s) / round_s))
        for arrival in scenario.replayed
    )
    return _Load(tuple(a for a in arrivals if 0 <= a.at_s < until_s), from_s, until_s)


def _pattern(name: PatternName, qps: float, counted_s: float) -> Pattern:
    if name == "bursty":
        return Bursty(qps)
    return Diurnal(qps, period_s=counted_s) if name == "diurnal" else Poisson(qps)


def _lifetime_s(scenario: Scenario, num_answer_tokens: float, num_requests: int = 1) -> float:
    """Of a request with such an answer among so many, without speculation."""
    num_kv_tokens = round(num_requests * (scenario.lengths.prompt + num_answer_tokens / 2))
    load = StepLoad(num_requests, num_requests, num_kv_tokens)
    return num_answer_tokens * scenario.cluster.target.law.step_s(load)


def _loaded_lifetime_s(scenario: Scenario, qps: float) -> float:
    """Of a request among those that such a load brings, as many as a target takes at most.

    A step may take many times as long with them as for one request alone, and prompts of others
    are read meanwhile.
    """
    cluster, num_requests, life_s = scenario.cluster, 1, 0.0
    per_target = qps / cluster.num_targets
    num_prompt = round(max(0, scenario.lengths.prompt - scenario.num_cached))
    prefill_s = cluster.target.law.step_s(StepLoad(1, num_prompt, num_prompt, 0, num_prompt))
    prefill_share = min(_MOST_PREFILL, per_target * prefill_s)
    for _ in range(_SETTLES):
        decode_s = _lifetime_s(scenario, scenario.lengths.answer, num_requests)
        life_s = decode_s / (1 - prefill_share)
        at_once = math.ceil(life_s * per_target)
        num_requests = max(1, min(at_once, cluster.target.max_num_seqs))
    return life_s


def _cost(scenario: Scenario, trial: Trial, summary: Summary) -> float | None:
    if not summary.tokens_per_s:
        return None
    targets = scenario.cluster.num_targets * scenario.gpus_per_target * scenario.prices.target_gpu
    drafts = trial.num_drafts * scenario.gpus_per_draft * scenario.prices.draft_gpu
    return (targets + drafts) / 3600 / summary.tokens_per_s * 1e6
