"""How long a target step takes, learnt from the steps themselves."""

_PRIOR_TOKEN_COST = 0.03  # of a one-token step, per further token; a memory-bound step's order
_PRIOR_STRENGTH = 4.0  # steps' worth of evidence that the prior counts for
_FORGETTING = 0.99  # weight that a step keeps when the next one arrives
_OUTLIER = 4.0  # a step this many times the prediction is clipped: a page fault, not a law


class StepTimeModel:
    """T(tokens) = base + tokens * cost, fitted by discounted least squares.

    A memory-bound step reads the weights once however many tokens it verifies, so the base is
    large and the cost small; near the ridge the cost takes over (roofline, arXiv 2402.16363).
    """

    def __init__(self) -> None:
        self._base_s = 0.0
        self._cost_s = 0.0
        self._weight = 0.0
        self._sum_x = self._sum_xx = self._sum_y = self._sum_xy = 0.0

    @property
    def is_ready(self) -> bool:
        """Whether any step has been measured."""
        return self._weight > 0

    def predict(self, num_tokens: int) -> float:
        """Seconds that a step over `num_tokens` tokens takes; 0 before the first measurement."""
        return self._base_s + self._cost_s * num_tokens

    def observe(self, num_tokens: int, seconds: float) -> None:
        """Learn from a finished step without prefill."""
        if not self.is_ready:
            self._start(num_tokens, seconds)
        else:
            seconds = min(seconds, _OUTLIER * self.predict(num_tokens))
            self._decay()
        self._add(num_tokens, seconds, 1.0)
        self._fit()

    def _start(self, num_tokens: int, seconds: float) -> None:
        base = seconds / (1 + _PRIOR_TOKEN_COST * num_tokens)
        for tokens in (num_tokens, num_tokens + 32):
            self._add(tokens, base * (1 + _PRIOR_TOKEN_COST * tokens), _PRIOR_STRENGTH / 2)

    def _decay(self) -> None:
        self._weight *= _FORGETTING
        self._sum_x *= _FORGETTING
        self._sum_xx *= _FORGETTING
        self._sum_y *= _FORGETTING
        self._sum_xy *= _FORGETTING

    def _add(self, x: float, y: float, weight: float) -> None:
        self._weight += weight
        self._sum_x += weight * x
        self._sum_xx += weight * x * x
        self._sum_y += weight * y
        self._sum_xy += weight * x * y

    def _fit(self) -> None:
        mean_x, mean_y = self._sum_x / self._weight, self._sum_y / self._weight
        variance = self._sum_xx / self._weight - mean_x**2
        if variance > 0.25:  # else all steps had the same size: keep the slope, move the base
            covariance = self._sum_xy / self._weight - mean_x * mean_y
            self._cost_s = max(0.0, covariance / variance)
        self._cost_s = min(self._cost_s, mean_y / max(mean_x, 1.0))
        self._base_s = mean_y - self._cost_s * mean_x
