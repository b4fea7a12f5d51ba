"""Small clusters whose figures are known beforehand."""

from collections.abc import Sequence

from specray.simulate.agreement import AgreementModel, ByPlace
from specray.simulate.arrivals import Arrival
from specray.simulate.cluster import ClusterSettings
from specray.simulate.draft import DraftSettings
from specray.simulate.network import NetworkSettings
from specray.simulate.requests import Request, make_requests
from specray.simulate.step_laws import ConstantSteps, StepLaw
from specray.simulate.target import TargetSettings
from specray.types import FixedRule, Source, SpeculationPolicy

STEP_S = 0.05


def cluster(
    *,
    depth: int | None = None,
    is_enabled: bool = True,
    law: StepLaw | None = None,
    draft_s: float = 0.0,
    source: Source = "model",
    ahead: float = 0.0,
    max_num_seqs: int = 64,
    num_targets: int = 1,
    num_drafts: int = 1,
    delay_s: float = 0.0002,
    verify_overhead_s: float = 0.0,
) -> ClusterSettings:
    """By default one target with steps of 50 ms, and a draft that takes no time itself."""
    policy = SpeculationPolicy(is_enabled=is_enabled)
    if depth is not None:
        policy = SpeculationPolicy(is_enabled=is_enabled, depth_rule=FixedRule(depth=depth))
    return ClusterSettings(
        TargetSettings(
            law or ConstantSteps(STEP_S),
            policy,
            max_num_seqs=max_num_seqs,
            verify_overhead_s=verify_overhead_s,
        ),
        DraftSettings(ConstantSteps(draft_s), source, ahead_hit_rate=ahead),
        num_targets=num_targets,
        num_drafts=num_drafts,
        network=NetworkSettings(delay_s),
    )


def alone(num_answer: int, rate: float = 1.0) -> list[Request]:
    """One request."""
    return requests([Arrival(0.0, 10, num_answer)], ByPlace((rate,)))


def requests(
    arrivals: Sequence[Arrival], agreement: AgreementModel | None = None, seed: int = 0
) -> list[Request]:
    """Fresh requests; equal arguments give equal ones."""
    return make_requests(arrivals, agreement or ByPlace((0.7,)), 0, seed)
