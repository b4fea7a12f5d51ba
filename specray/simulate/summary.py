"""What a run amounts to, in the figures that a service is judged by."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from specray.simulate.cluster import Run
from specray.simulate.requests import Request
from specray.simulate.target import Step

_LEAST_SLACK, _MOST_SLACK = 0.05, 0.2


class Percentiles(NamedTuple):
    """Of a set of durations, in seconds; all None when the set is empty."""

    p50: float | None
    p95: float | None
    p99: float | None


@dataclass(frozen=True, slots=True)
class Summary:
    """A run's figures, over the time that counts."""

    num_arrived: int  # requests
    num_requests: int  # that finished
    offered_tokens_per_s: float  # answer tokens that were asked for
    tokens_per_s: float  # answer tokens that were committed
    ttft_s: Percentiles  # arrival to first token
    tpot_s: Percentiles  # a request's time after its first token, over the tokens after it
    mean_tpot_s: float | None
    mean_depth: float  # draft tokens verified per request and decode step
    acceptance_rate: float  # accepted over verified; 0 when none were
    tokens_per_step: float  # committed per request and decode step
    mean_batch: float  # requests per step, weighed by its time
    target_busy: float  # share of time in steps, over all targets
    waited: float  # share of time that steps were held back for proposals
    draft_busy: float  # share of time, over all drafts
    draft_queue_s: Percentiles  # a commit's wait until its proposal is begun

    @property
    def keeps_up(self) -> bool:
        """Whether what is asked for is answered, and does not pile up.

        How many requests are there when counting begins and ends is chance, and more so for few.
        """
        chance = 1 / math.sqrt(max(1, self.num_arrived))
        slack = min(max(chance, _LEAST_SLACK), _MOST_SLACK)
        return self.tokens_per_s >= (1 - slack) * self.offered_tokens_per_s


def summarise(run: Run, from_s: float = 0.0, until_s: float | None = None) -> Summary:
    """The figures of a run.

    Args:
        run: what was simulated.
        from_s: the time that counts begins here, once the cluster has filled.
        until_s: and ends here; by default with the run.
    """
    until_s = run.ended_s if until_s is None else until_s
    length_s = max(until_s - from_s, 1e-9)
    steps = [s for target in run.steps for s in target if from_s < s.ended_s <= until_s]
    came = [r for r in run.requests if from_s <= r.arrived_s < until_s]
    ended = [r for r in came if r.finished_s is not None and r.finished_s <= until_s]
    num_decoded = sum(step.num_requests for step in steps)
    num_proposed, num_accepted = _sum(steps, "num_proposed"), _sum(steps, "num_accepted")
    tpots = [tpot for request in ended if (tpot := _tpot_s(request)) is not None]
    target_s, draft_s = length_s * len(run.steps), length_s * max(1, len(run.drafts))
    return Summary(
        num_arrived=len(came),
        num_requests=len(ended),
        offered_tokens_per_s=sum(r.num_answer for r in came) / length_s,
        tokens_per_s=_sum(steps, "num_committed") / length_s,
        ttft_s=percentiles(r.first_token_s - r.arrived_s for r in came if r.first_token_s),
        tpot_s=percentiles(tpots),
        mean_tpot_s=float(np.mean(tpots)) if tpots else None,
        mean_depth=num_proposed / max(1, num_decoded),
        acceptance_rate=num_accepted / max(1, num_proposed),
        tokens_per_step=1 + num_accepted / max(1, num_decoded),
        mean_batch=sum(s.num_requests * s.seconds for s in steps)
        / max(1e-9, _sum(steps, "seconds")),
        target_busy=_sum(steps, "seconds") / target_s,
        waited=_sum(steps, "waited_s") / target_s,
        draft_busy=sum(draft.busy_s(from_s, until_s) for draft in run.drafts) / draft_s,
        draft_queue_s=percentiles(s for d in run.drafts for s in d.queue_s(from_s, until_s)),
    )


def percentiles(values: Iterable[float]) -> Percentiles:
    """The median and the tail."""
    found = list(values)
    if not found:
        return Percentiles(None, None, None)
    return Percentiles(*(float(value) for value in np.percentile(found, [50, 95, 99])))


def _tpot_s(request: Request) -> float | None:
    if request.num_answer < 2 or request.first_token_s is None or request.finished_s is None:
        return None
    return (request.finished_s - request.first_token_s) / (request.num_answer - 1)


def _sum(steps: Sequence[Step], name: str) -> float:
    return float(sum(getattr(step, name) for step in steps))
