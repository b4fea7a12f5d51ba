"""What a sweep measures: systems, loads, and for how long."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from specray.errors import InvalidConfigError
from specray.types import BatchSizeRule

_SEED = 20_260_000
_SHORTEST, _LONGEST = 0.25, 1.75  # answers, in means
OURS = "specray"
SYSTEMS = ("off", "depth 1", "depth 3", "depth 5", "depth 8", "table", OURS)
FIXED = tuple(name for name in SYSTEMS if name.startswith("depth "))
DEFAULT_NUM_SEQS = 256  # vLLM's
MAX_DEPTH = 8  # of the service, so that every fixed depth fits


@dataclass(frozen=True, slots=True)
class Load:
    """Requests over a span of time."""

    name: str
    qps: float  # Poisson arrivals; 0: all come at once
    num_requests: int

    def arrivals_s(self, round_index: int) -> list[float]:
        """When they come, from the beginning on: the same in a round for every system.

        They are scaled to their mean, so that rounds differ in when requests come but not in how
        many there are.
        """
        if not self.qps:
            return [0.0] * self.num_requests
        rng = np.random.default_rng([_SEED, round_index, round(1000 * self.qps)])
        gaps = rng.exponential(size=self.num_requests)
        gaps *= self.num_requests / self.qps / gaps.sum()
        return [float(time_s) for time_s in np.cumsum(gaps) - gaps[0]]

    def lengths(self, round_index: int, mean_tokens: int) -> list[int]:
        """How long the answers are, evenly spread around the mean: the same for every system.

        Were they of one length, those that begin together would end together without speculation,
        which keeps its batch full to the end as no real load does, and one by one with it.
        """
        spread = np.linspace(_SHORTEST, _LONGEST, self.num_requests)
        rng = np.random.default_rng([_SEED, round_index, round(1000 * self.qps)])
        return [round(mean_tokens * part) for part in rng.permutation(spread)]


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """All that is measured."""

    loads: tuple[Load, ...]
    num_rounds: int
    mean_tokens: int  # of the answers; the end of the text is ignored
    settle_s: float = 2.5  # until a changed policy has reached the targets
    lag_s: float = 1.2  # until their counters are here, but for the last second's
    systems: tuple[str, ...] = SYSTEMS

    def cells(self) -> Iterator[tuple[int, Load, str]]:
        """Rounds of loads of systems, whose order turns with each round and load."""
        for index in range(self.num_rounds):
            for turn, load in enumerate(self.loads):
                first = (3 * index + turn) % len(self.systems)
                for system in self.systems[first:] + self.systems[:first]:
                    yield index, load, system


def make_sweep(*, is_quick: bool, num_rounds: int | None = None) -> SweepPlan:
    """For a service that answers some 120 tokens a second: quick in 5 minutes, in full 100.

    Args:
        is_quick: which of them.
        num_rounds: others than its own: one, and four in full.
    """
    if is_quick:
        few = (_poisson(0.5, 4), _poisson(6.0, 24), _burst(12))
        return SweepPlan(few, num_rounds or 1, mean_tokens=40)
    many = (
        *(_poisson(0.25, 8), _poisson(0.5, 12), _poisson(1.0, 24)),
        *(_poisson(2.0, 48), _poisson(4.0, 64), _poisson(8.0, 64), _burst(16)),
    )
    return SweepPlan(many, num_rounds or 4, mean_tokens=64)


def narrowed(plan: SweepPlan, loads: Sequence[str], systems: Sequence[str]) -> SweepPlan:
    """Some of its loads and systems; all where none is named.

    Speculation off and ours are always among the systems, as the others are compared with them.

    Raises:
        InvalidConfigError: a name is none of the plan's.
    """
    named = {load.name: load for load in plan.loads}
    for option, names, known in (("--load", loads, named), ("--only", systems, plan.systems)):
        if unknown := [name for name in names if name not in known]:
            raise InvalidConfigError(
                f"{option}: {unknown[0]!r} is none of the sweep's: {', '.join(known)}"
            )
    kept = {"off", OURS, *(systems or plan.systems)}
    return replace(
        plan,
        loads=tuple(load for load in plan.loads if not loads or load.name in loads),
        systems=tuple(system for system in plan.systems if system in kept),
    )


def live_settings(system: str, max_num_seqs: int) -> dict[str, Any]:
    """The controller's `user_config` under which the service is that system.

    Args:
        system: one of a sweep's.
        max_num_seqs: places of one of the service's targets.
    """
    if system in FIXED:
        depth = int(system.removeprefix("depth "))
        return {"depth_policy": {"name": "fixed", "depth": depth}}
    if system == "table":
        return {"depth_policy": {"name": "batch_size_table", "table": _table(max_num_seqs)}}
    return {"depth_policy": {"name": "goodput"}}


def _table(max_num_seqs: int) -> list[list[int]]:
    """vLLM's, stretched to a target's places: it was made for full batches of vLLM's default."""
    rows, first = [], 1
    for _, last, depth in BatchSizeRule().table:
        last = max(1, round(last * max_num_seqs / DEFAULT_NUM_SEQS))
        if last >= first:
            rows.append([first, last, depth])
            first = last + 1
    return rows


def _poisson(qps: float, num_requests: int) -> Load:
    return Load(f"{qps:g}", qps, num_requests)


def _burst(num_requests: int) -> Load:
    return Load(f"burst of {num_requests}", 0.0, num_requests)
