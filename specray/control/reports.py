"""What replicas report of themselves with each heartbeat: small, over the last seconds."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from specray.wire.stats import Durations, TargetStats

WINDOW_S = 10.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TargetReport:
    """One target replica. Numbers of requests and the KV cache's usage are means."""

    deployment: str
    num_running: float
    num_waiting: float
    max_running: int
    kv_usage: float  # 0 to 1
    requests_per_s: float  # that arrived
    tokens_per_s: float  # goodput
    step_s: float  # a step without prefill
    ttft_s: float | None  # None: no request got its first token
    tpot_s: float | None
    intensity: float  # FLOPs per byte of the latest step; 0: the hardware is not known
    ridge: float
    depth: float  # draft tokens verified per request and step
    acceptance: float  # accepted over verified
    survivals: tuple[float, ...]  # by place in the chain: that it and all before were accepted
    asked_per_s: float  # proposals
    hit_rate: float  # of these: there when the step was scheduled
    late_rate: float  # that came while it was held back, or later
    miss_rate: float  # that never came
    wait_share: float  # of the time, in which steps were held back
    relay_s: float  # of a commit's way to a draft and back
    gain: float  # of speculation whose proposals are always there, over none; 0: not known
    gain_step_s: float  # such a step
    utilisation: float = 0.0  # share of the time that was spent in steps
    tenants: tuple[tuple[str, float], ...] = ()  # as in a router's report, if requests pass none


@dataclass(frozen=True, slots=True)
class DraftReport:
    """One draft replica."""

    deployment: str
    num_sessions: int
    utilisation: float  # share of the time that it worked
    needed: float  # the same, less drafting ahead and other work that nobody waits for
    answers_per_s: float
    tokens_per_answer: float
    queue_s: float  # mean, from a commit's arrival until its answer is begun
    answer_fixed_s: float  # of a batch of answers, whatever its size
    answer_each_s: float  # and for each answer in it


@dataclass(frozen=True, slots=True)
class RouterReport:
    """One router."""

    requests_per_s: float
    tenants: tuple[tuple[str, float], ...]  # those with the most requests, and these per second


Report = TargetReport | DraftReport | RouterReport


class Sample(NamedTuple, Generic[T]):
    """Counters, and when they were read."""

    at_s: float
    counters: T


class Window(Generic[T]):
    """Snapshots of counters over the last seconds."""

    def __init__(self, clock: Callable[[], float], length_s: float = WINDOW_S) -> None:
        self._clock = clock
        self._length_s = length_s
        self._samples: deque[Sample[T]] = deque()

    def add(self, counters: T) -> Sequence[Sample[T]]:
        """All snapshots, this one last and one from before the window's begin first, if any."""
        now = self._clock()
        self._samples.append(Sample(now, counters))
        while len(self._samples) > 2 and self._samples[1].at_s <= now - self._length_s:
            self._samples.popleft()
        return tuple(self._samples)


class TargetReporter:
    """Makes a target's reports from its counters."""

    def __init__(self, deployment: str, clock: Callable[[], float]) -> None:
        self._deployment = deployment
        self._window: Window[TargetStats] = Window(clock)

    def report(self, stats: TargetStats) -> TargetReport:
        """The report after these counters."""
        samples = self._window.add(stats)
        return _target_report(self._deployment, samples)


def _target_report(deployment: str, samples: Sequence[Sample[TargetStats]]) -> TargetReport:
    before, now = samples[0].counters, samples[-1].counters
    seconds = max(1e-9, samples[-1].at_s - samples[0].at_s)
    loads = [sample.counters.load for sample in samples]
    num_asked = sum(_num_asked(now)) - sum(_num_asked(before))
    hits, lates, misses = (
        _ratio(b - a, num_asked) for a, b in zip(_num_asked(before), _num_asked(now), strict=True)
    )
    num_proposed = _num_proposed(now) - _num_proposed(before)
    num_decoded = now.load.num_decoded - before.load.num_decoded
    decode_s = now.load.decode_s - before.load.decode_s
    survivals = _survivals(before, now)
    return TargetReport(
        deployment=deployment,
        num_running=sum(load.num_running for load in loads) / len(loads),
        num_waiting=sum(load.num_waiting for load in loads) / len(loads),
        max_running=now.load.max_running,
        kv_usage=sum(load.kv_usage for load in loads) / len(loads),
        utilisation=min(1.0, (now.load.busy_s - before.load.busy_s) / seconds),
        requests_per_s=(now.load.num_arrived - before.load.num_arrived) / seconds,
        tokens_per_s=(now.num_committed - before.num_committed) / seconds,
        step_s=_mean_s(before.step_time, now.step_time) or 0.0,
        ttft_s=_mean_s(before.load.first_token_time, now.load.first_token_time),
        tpot_s=decode_s / num_decoded if num_decoded > 0 else None,
        intensity=now.roofline.flops_per_byte,
        ridge=now.roofline.ridge,
        depth=_ratio(num_proposed, now.num_request_steps - before.num_request_steps),
        acceptance=_ratio(_num_accepted(now) - _num_accepted(before), num_proposed),
        survivals=survivals,
        asked_per_s=num_asked / seconds,
        hit_rate=hits,
        late_rate=lates,
        miss_rate=misses,
        wait_share=(now.wait_time.sum_s - before.wait_time.sum_s) / seconds,
        relay_s=_mean_s(before.relay_time, now.relay_time) or 0.0,
        gain=now.prospect.gain,
        gain_step_s=now.prospect.step_s,
    )


def _num_asked(stats: TargetStats) -> tuple[int, int, int]:
    """Proposals that were asked for, by what came of them."""
    return stats.num_hits, stats.num_late, stats.num_absent


def _num_proposed(stats: TargetStats) -> int:
    return sum(counts.num_proposed for counts in stats.sources.values())


def _num_accepted(stats: TargetStats) -> int:
    return sum(counts.num_accepted for counts in stats.sources.values())


def _survivals(before: TargetStats, now: TargetStats) -> tuple[float, ...]:
    """Chains accepted up to a place over those that were verified so far; falling."""
    most = max((len(c.proposed_per_position) for c in now.sources.values()), default=0)
    survivals: list[float] = []
    for place in range(most):
        proposed = _at(now, place, "proposed") - _at(before, place, "proposed")
        accepted = _at(now, place, "accepted") - _at(before, place, "accepted")
        if proposed <= 0:
            break
        survivals.append(min([accepted / proposed, *survivals[-1:]]))
    return tuple(survivals)


def _at(stats: TargetStats, place: int, what: str) -> int:
    counted = (getattr(c, f"{what}_per_position") for c in stats.sources.values())
    return sum(counts[place] for counts in counted if place < len(counts))


def _mean_s(before: Durations, now: Durations) -> float | None:
    count = now.count - before.count
    return (now.sum_s - before.sum_s) / count if count > 0 else None


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
