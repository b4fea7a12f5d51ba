"""How many draft tokens each request verifies in a step."""

import sys
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specray.control.loops import taking
from specray.control.roofline import Numbers, StepLoad, StepTime

NO_LIMIT = sys.maxsize


class Chains(NamedTuple):
    """The draft tokens that a step could verify, one chain per request."""

    survivals: Numbers  # [requests, depth]: that a token and all before it are accepted; falling
    max_depths: NDArray[np.intp]  # [requests]; what lies beyond has survival 0


@dataclass(frozen=True, slots=True)
class Batch:
    """The step that is planned, without its draft tokens."""

    load: StepLoad
    num_sure: int  # tokens it commits in any case: one for each request that decodes
    max_drafts: int = NO_LIMIT  # room for draft tokens, by the budgets of tokens and KV memory
    wait_s: float = 0.0  # lost before it begins, waiting for the chains' proposals
    sunk_s: float = 0.0  # of its time: prefill, which has to be paid whatever is verified beside it
    arrivals_per_s: float = 0.0  # requests, lately
    prudence: float = 1.0  # how often the time that draft tokens add counts

    @property
    def num_requests(self) -> int:
        """Requests in the step."""
        return self.load.num_requests


@dataclass(frozen=True, slots=True)
class DepthPlan:
    """Depths, and the goodput they promise."""

    depths: tuple[int, ...]  # one per chain
    num_expected: float  # tokens committed by the step, over the whole batch
    step_s: float  # without what is sunk
    plain_s: float  # the same without drafts and the wait for them
    saved_s: float = 0.0  # against as many tokens from steps without drafts; where it was weighed

    @property
    def goodput(self) -> float:
        """Committed tokens per second of the whole batch (SmartSpec, arXiv 2406.14066)."""
        return self.num_expected / self.step_s if self.step_s > 0 else 0.0


def plan_depths(chains: Chains, batch: Batch, step_time: StepTime) -> DepthPlan:
    """Choose the depths that maximise expected commits per second.

    What draft tokens add to the step's time counts as often as the batch's prudence says, for the
    choice alone. Near the optimum tokens bring hardly more than they cost, so that it is no loss to
    leave out those that fail by a little; taken on a prediction that is a little too low, they make
    the step slower than one without drafts.

    Seconds of prefill don't count. They make a step long for what it commits, so that by them
    almost any draft token would seem worth its time; but what it saves is a part of steps to come.

    Tokens are taken in order of survival, over all requests, for as long as each raises expected
    commits over predicted seconds. Survival falls along a chain, so no token comes before its
    predecessor, and no other choice of as many tokens commits more. Commits are then a concave
    function of the number taken and seconds a convex one (`StepTime`), so their ratio has one peak,
    and where it stops rising is the optimum over all depths (tests compare brute force); with more
    prudence, that of steps whose draft tokens take so much longer. A mixture's seconds are not
    convex: the first draft tokens bring most experts. Then the peak may be the first of two, and
    the further one higher: in the tests' random draws by less than 1 % on average, 30 % at most.

    To stop there, instead of looking for a peak further on, is what keeps sampled output exact
    whatever the step time does: whether a token is verified depends on survivals of tokens before
    it, of its own and of other requests', never on one of a token behind it, which would tell which
    token was drawn.
    """
    most = min(batch.max_drafts, int(chains.max_depths.sum()))  # what lies beyond sorts last
    order = (-chains.survivals.ravel()).argsort(kind="stable")[:most]
    seconds = step_time.predict(batch.load, np.arange(len(order) + 1, dtype=np.float64))
    if len(seconds) != len(order) + 1:
        raise ValueError("a step time has to predict each number of draft tokens")
    other_s = batch.wait_s - batch.sunk_s
    depths = np.zeros(len(chains.survivals), np.intp)
    num_taken, committed, saved_s = 0, float(batch.num_sure), 0.0
    first_s = float(seconds[0]) + other_s
    if first_s > 0:
        num_taken, committed = taking()(
            *(chains.survivals, order, seconds, committed, other_s, batch.prudence, depths)
        )
    taken_s = float(seconds[num_taken]) + other_s
    if first_s > 0 and batch.num_sure:
        saved_s = committed * first_s / batch.num_sure - taken_s
    plain_s = float(seconds[0]) - batch.sunk_s
    return DepthPlan(tuple(depths.tolist()), committed, taken_s, plain_s, saved_s)


def uniform_plan(depth: int, chains: Chains, batch: Batch, step_time: StepTime) -> DepthPlan:
    """The same depth for all, as far as their chains and the batch's budgets go."""
    depth = min(depth, int(chains.max_depths.max(initial=0)))
    depths = np.minimum(chains.max_depths, depth)
    while depths.sum() > batch.max_drafts:
        depth -= 1
        depths = np.minimum(chains.max_depths, depth)
    places = np.arange(chains.survivals.shape[1])
    gains = float(chains.survivals[places < depths[:, None]].sum())
    num_drafts = np.arange(depths.sum() + 1, dtype=np.float64)
    seconds = step_time.predict(batch.load, num_drafts)
    plain_s = float(seconds[0]) - batch.sunk_s
    step_s = float(seconds[-1]) + batch.wait_s - batch.sunk_s
    return DepthPlan(tuple(depths.tolist()), batch.num_sure + gains, step_s, plain_s)
