"""How long a target step takes, learnt from the steps themselves."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specray.control.roofline import Numbers, Roofline, StepLoad, StepTime

_KNOTS = (8.0, 32.0, 128.0, 512.0)  # tokens of a step at which the cost of one may rise
_FEATURES = (
    "prior",
    "base",
    "token",
    *(f"beyond {knot:g}" for knot in _KNOTS),
    "request",
    "kv",
    "sampled",
    "prefill",
)
# How far each coefficient may stray from 0 (the first: from the start's), in units of the first
# prediction: 0.05 a token makes 20 tokens cost as much again as all the rest.
_SCALES = np.array([2.0, 0.3, 0.05, 0.05, 0.02, 0.008, 0.002, 0.03, 1e-4, 0.05, 0.05])
_NOISE = 0.1  # of a step's time, by which steps of the same size differ

_BIN_FORGETTING = 0.98  # weight that a bin's steps keep when another of their size arrives
_FORGETTING = 0.9995  # and when any other does: what is not seen any more fades slowly
_NUM_SIZES = 13  # powers of two of the number of tokens
_NUM_BINS = 2 * _NUM_SIZES  # of each size, those without and those with draft tokens
_LEAST_TOLERANCE = 0.15  # relative errors within it count in full, as do those usual lately
_PATIENCE_STEPS = 8  # so many outliers in a row on one side are no accident but another law
_RUN_FORGETTING = 0.8  # of everything, for each step of a longer run
_IMPOSSIBLY_FAST = 0.25  # of the prediction; slow may be an accident, fast can't:
_PATIENCE_TOO_FAST = 3  # after so many such steps in a row what was learnt is dropped
_LEVEL_GAIN = 0.2  # of how much slower or faster than predicted the latest step was
_LARGEST_SURPRISE = 0.3  # of one step's logarithm
_LEVEL_SHARE = 0.5  # of the level that is taken out of what is learnt for good
_EAGER_STEPS = 64  # fitted after each of them, later after every few
_STEPS_PER_FIT = 4


class MemoryBound:
    """The shape to start from where the hardware is not known: tokens are nearly free."""

    def predict(self, load: StepLoad, num_drafts: Numbers) -> Numbers:
        """In units of a step without tokens."""
        seconds: Numbers = 1.0 + 0.03 * (load.num_tokens + num_drafts)
        return seconds


class StepTimeModel:
    """T = prior * scale + costs of tokens, requests, KV and sampled tokens - a prefill's discount.

    The prior is the roofline's prediction where the hardware is known. The cost of a token may
    rise at some numbers of tokens, as a step's does that is bound by memory first and by FLOPs
    then: T is convex in it wherever the prior is, as all are but those of mixtures of experts.
    Tokens of prompts may cost less than others: products of many rows reach more of a core's
    FLOPs, and what they take must not make draft tokens look cheap. Relative errors are
    minimised, those of outliers with less weight (Huber's). A step fades as others of its size
    arrive and hardly otherwise: what was learnt under load is still known after a quiet hour,
    and what plain steps take after many as large with draft tokens, but not the other way
    round. On top of that a level follows the last few steps, as clocks and neighbours slow all
    steps down alike for a while.
    """

    def __init__(self, prior: Roofline | None = None) -> None:
        """Takes the roofline, if there is one."""
        self._has_prior = prior is not None
        self._hardware = prior.hardware.state() if prior is not None else None
        self._experts = prior.model.experts() if prior is not None else None
        self._prior: StepTime = prior or MemoryBound()
        self._start_over()
        self.median_error = 0.0  # relative, of predictions before their step was learnt from

    def _start_over(self) -> None:
        size = len(_FEATURES)
        self._coefficients: Numbers = np.zeros(size)
        self._start: Numbers = np.zeros(size)
        self._penalties: Numbers = np.zeros(size)
        self._squares = np.zeros((_NUM_BINS, size, size))  # normal equations of each bin
        self._targets = np.zeros((_NUM_BINS, size))
        self._num_steps = 0
        self._level = 0.0  # logarithm of how slow the machine is at the moment
        self._num_too_fast = 0
        self._run = 0  # outliers in a row; negative when faster than predicted
        self._tolerance = _LEAST_TOLERANCE
        if self._has_prior:
            self._begin(1.0)

    @property
    def is_blank(self) -> bool:
        """Whether nothing is known at all, so that all predictions are 0."""
        return not self._coefficients.any()

    @property
    def is_young(self) -> bool:
        """Whether each step still teaches it much."""
        return self._num_steps < _EAGER_STEPS

    def _begin(self, scale: float) -> None:
        """Start from the prior."""
        unit_s = scale * float(self._prior.predict(StepLoad(1, 1, 0), np.zeros(1))[0])
        self._start[0] = self._coefficients[0] = scale
        spread = np.concatenate(([scale], np.full(len(_FEATURES) - 1, unit_s))) * _SCALES
        self._penalties = (_NOISE / spread) ** 2

    def predict(self, load: StepLoad, num_drafts: Numbers) -> Numbers:
        """See `StepTime.predict`."""
        base = float(self._coefficients[1])
        request, kv, sampled, saved = self._coefficients[-4:].tolist()
        fixed = base + request * load.num_requests + kv * load.num_kv_tokens
        fixed += sampled * load.num_sampled
        per_draft = sampled * min(1.0, load.num_sampled / max(1, load.num_requests))
        seconds = self._tokens_s(load, num_drafts)
        if (num_prefill := load.num_prefill_tokens) > 0:  # which never makes a step shorter
            others = load._replace(num_tokens=load.num_tokens - num_prefill)
            others_s = self._tokens_s(others, num_drafts)
            seconds = np.maximum(seconds - saved * num_prefill, others_s)
        seconds += fixed
        if per_draft > 0:
            seconds += per_draft * num_drafts
        seconds *= math.exp(self._level)
        return seconds

    def _tokens_s(self, load: StepLoad, num_drafts: Numbers) -> Numbers:
        """What grows with a step's tokens."""
        scale, _, token, *beyond = self._coefficients[: 3 + len(_KNOTS)].tolist()
        seconds: Numbers = scale * self._prior.predict(load, num_drafts)
        if token > 0:
            seconds += token * (load.num_tokens + num_drafts)
        for knot, cost in zip(_KNOTS, beyond, strict=True):
            if cost > 0:
                seconds += cost * np.maximum(0.0, (load.num_tokens - knot) + num_drafts)
        return seconds

    def step_s(self, load: StepLoad) -> float:
        """Seconds of one step."""
        return float(self.predict(load, np.zeros(1))[0])

    def observe(self, load: StepLoad, seconds: float) -> None:
        """Learn from a finished step; one without tokens or without time teaches nothing."""
        if not seconds > 0 or load.num_tokens < 1:
            return
        expected_s = self.step_s(load)
        is_too_fast = seconds < _IMPOSSIBLY_FAST * expected_s
        self._num_too_fast = self._num_too_fast + 1 if is_too_fast else 0
        if self._num_too_fast >= _PATIENCE_TOO_FAST:
            self._start_over()
            expected_s = self.step_s(load)
        if expected_s <= 0:
            self._begin(seconds / float(self._prior.predict(load, np.zeros(1))[0]))
            expected_s = seconds
        error = seconds / expected_s - 1
        self._note_error(abs(error))
        usual_s = seconds / math.exp(_LEVEL_SHARE * self._level)
        self._add(load, usual_s / expected_s, expected_s, self._weight(error))
        surprise = math.log(seconds / expected_s)
        bounded = min(max(surprise, -_LARGEST_SURPRISE), _LARGEST_SURPRISE)
        self._level += _LEVEL_GAIN * bounded
        self._num_steps += 1
        if self.is_young or self._num_steps % _STEPS_PER_FIT == 0:
            self._fit()

    def state(self) -> dict[str, Any]:
        """What has been learnt, as JSON can hold it."""
        return {
            "features": list(_FEATURES),
            "hardware": self._hardware,
            "experts": self._experts,
            "start": self._start.tolist(),
            "penalties": self._penalties.tolist(),
            "squares": self._squares.tolist(),
            "targets": self._targets.tolist(),
        }

    def restore(self, state: Mapping[str, Any], trust: float) -> None:
        """Go on from what was learnt before.

        Args:
            state: A `state` of a model of the same kind, with a prior of the same hardware and,
                of a mixture, the same experts.
            trust: Weight of the old steps against new ones, in (0, 1].

        Raises:
            ValueError: it is no such state.
        """
        if state.get("features") != list(_FEATURES):
            raise ValueError("its features are others")
        if "hardware" not in state or state["hardware"] != self._hardware:
            raise ValueError("it was learnt against the prior of other hardware")
        if state.get("experts") != self._experts:  # of before they were told apart: none
            raise ValueError("it was learnt against the prior of a model with other experts")
        parts = [self._sound(state, name) for name in ("start", "penalties", "squares", "targets")]
        self._start, self._penalties, squares, targets = parts
        self._squares, self._targets = trust * squares, trust * targets
        self._num_steps = _EAGER_STEPS
        try:
            self._fit()
        except np.linalg.LinAlgError as error:
            self._start_over()
            raise ValueError(f"its normal equations have no solution: {error}") from None

    def _sound(self, state: Mapping[str, Any], name: str) -> NDArray[np.float64]:
        values = np.array(state.get(name), np.float64)
        shape = getattr(self, f"_{name}").shape
        if values.shape != shape or not np.isfinite(values).all():
            raise ValueError(f"its {name} are not {shape} numbers")
        return values

    def _note_error(self, error: float) -> None:
        """Follow the median: up and down by the same small step in relative terms."""
        gain = 0.05 if self._num_steps < _EAGER_STEPS else 0.02
        self.median_error = max(1e-3, self.median_error)
        self.median_error *= 1 + gain if error > self.median_error else 1 - gain

    def _weight(self, error: float) -> float:
        """Huber's weight; that of a run of outliers is full, as then the law has changed."""
        size = abs(error)
        is_outlier = size > self._tolerance
        side = 1 if error > 0 else -1
        self._run = (self._run + side if self._run * side >= 0 else side) if is_outlier else 0
        tolerance = self._tolerance
        self._tolerance += 0.02 * (max(_LEAST_TOLERANCE, 3 * min(size, 0.5)) - self._tolerance)
        if not is_outlier or abs(self._run) > _PATIENCE_STEPS:
            return 1.0
        return tolerance / size

    def _add(self, load: StepLoad, target: float, unit_s: float, weight: float) -> None:
        row = self._row(load) / unit_s
        size = min(_NUM_SIZES - 1, int(load.num_tokens).bit_length() - 1)
        has_drafts = load.num_prefill_tokens == 0 and load.num_tokens > load.num_requests
        bin_index = size + has_drafts * _NUM_SIZES
        keep = _RUN_FORGETTING if abs(self._run) > _PATIENCE_STEPS else _FORGETTING
        self._squares *= keep
        self._targets *= keep
        # What drafts cost is thought of with less and less certainty while they rest.
        for fading in {bin_index, size + _NUM_SIZES}:
            self._squares[fading] *= _BIN_FORGETTING
            self._targets[fading] *= _BIN_FORGETTING
        self._squares[bin_index] += weight * np.outer(row, row)
        self._targets[bin_index] += weight * target * row

    def _row(self, load: StepLoad) -> Numbers:
        beyond = [max(0.0, load.num_tokens - knot) for knot in _KNOTS]
        prior_s = float(self._prior.predict(load, np.zeros(1))[0])
        return np.array(
            [
                prior_s,
                1.0,
                load.num_tokens,
                *beyond,
                load.num_requests,
                load.num_kv_tokens,
                load.num_sampled,
                -load.num_prefill_tokens,
            ]
        )

    def _fit(self) -> None:
        """Least squares without negative coefficients, by leaving out what would become so."""
        squares = self._squares.sum(axis=0) + np.diag(self._penalties)
        targets = self._targets.sum(axis=0) + self._penalties * self._start
        kept = np.arange(len(_FEATURES))
        solution = targets
        while len(kept) > 0:
            solution = np.linalg.solve(squares[np.ix_(kept, kept)], targets[kept])
            if solution.min() >= 0:
                break
            kept = np.delete(kept, int(solution.argmin()))
        self._coefficients = np.zeros(len(_FEATURES))
        self._coefficients[kept] = solution[: len(kept)]
