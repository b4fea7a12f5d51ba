"""How long a step should take: what it moves and computes, over what the hardware can.

The roofline of LLM inference (arXiv 2402.16363): a step is bound by its memory traffic while its
arithmetic intensity lies left of the ridge, and by its FLOPs right of it.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from specray.control.hardware import HardwareProfile

Numbers = NDArray[np.float64]


class StepLoad(NamedTuple):
    """What decides how long a step takes."""

    num_requests: int  # that get a token from it, or a part of their prefill
    num_tokens: int  # that it computes: one of each request, draft tokens, chunks of prefills
    num_kv_tokens: int  # whose keys and values it reads, over all its requests
    num_sampled: int = 0  # of its tokens, those after which one is drawn and not just the likeliest
    num_prefill_tokens: int = 0  # of its tokens, those of prompts

    @property
    def is_decode_only(self) -> bool:
        """Whether the step computes something, and nothing of a prompt."""
        return self.num_tokens > 0 and self.num_prefill_tokens == 0


class StepTime(Protocol):
    """Predicts steps."""

    def predict(self, load: StepLoad, num_drafts: Numbers) -> Numbers:
        """Seconds of steps that verify so many draft tokens on top of a load.

        Falls nowhere. With each further token by which a step grows it grows at least as much as
        with the one before, but for what is read of a mixture's experts: the first tokens need
        most of those that the step needs. 0 while nothing is known.

        Args:
            load: The step without draft tokens.
            num_drafts: [n], ascending by one from 0.
        """


class Window(NamedTuple):
    """Layers that read only the latest tokens."""

    num_layers: int
    num_tokens: int
    kv_bytes_per_token: float


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What a model's forward pass moves and computes, over all its ranks together."""

    num_active_parameters: float  # that a token passes through: of a mixture's, its experts' alone
    weight_bytes: float  # of all
    kv_bytes_per_token: float  # in the layers that read all tokens
    num_layers: int
    hidden_size: int
    dtype: str = "bfloat16"  # in which it computes
    activation_bytes: float = 2.0  # of one value that ranks exchange
    attention_width: int = 0  # heads times their dimension; 0: the hidden size
    expert_bytes: float = 0.0  # of the weights, those of routed experts
    idle_share: float = 0.0  # of a layer's experts, that a token does not pass through
    windows: tuple[Window, ...] = ()  # the other layers

    @property
    def flops_per_token(self) -> float:
        """FLOPs of one token's matrix products."""
        return 2.0 * self.num_active_parameters

    def attention_flops(self, num_tokens: float) -> float:
        """FLOPs of one token's attention to so many others."""
        num_read = self.num_layers * num_tokens
        for layers in self.windows:
            num_read -= layers.num_layers * max(0.0, num_tokens - layers.num_tokens)
        return 4.0 * (self.attention_width or self.hidden_size) * num_read

    def kv_bytes(self, num_requests: int, num_tokens: int) -> float:
        """Keys and values that a step reads of requests that have so many tokens together.

        All are taken to be of the mean length.
        """
        mean = num_tokens / max(1, num_requests)
        in_windows = sum(
            num_requests * min(mean, layers.num_tokens) * layers.kv_bytes_per_token
            for layers in self.windows
        )
        return self.kv_bytes_per_token * num_tokens + in_windows

    def read_bytes(self, num_tokens: Numbers) -> Numbers:
        """Weights that a step of so many tokens reads, where each expert is as likely as any.

        So MoESD (arXiv 2505.19645) models it. Tokens that choose independently read the most then;
        neighbours in a text share experts, and read fewer.
        """
        idle: Numbers = self.expert_bytes * self.idle_share**num_tokens
        return self.weight_bytes - idle

    def experts(self) -> list[float] | None:
        """What makes a mixture's law another than a dense model's, as JSON can hold it."""
        return [self.expert_bytes, self.idle_share] if self.expert_bytes else None


class Intensity(NamedTuple):
    """Where a step lies on the roofline."""

    flops_per_byte: float  # the arithmetic intensity of the step
    # That from which on the hardware is bound by its FLOPs: left of it verification is nearly free,
    # right of it each draft token costs.
    ridge: float


@dataclass(frozen=True, slots=True)
class Roofline:
    """T = max(bytes / bandwidth, FLOPs / peak) + collectives + overhead, on `num_ranks` devices."""

    model: ModelShape
    hardware: HardwareProfile
    num_ranks: int = 1
    overhead_s: float = 0.0  # of a step whatever its size: scheduling, sampling, launches
    efficiency: float = 1.0  # share of the peaks that is reached

    def predict(self, load: StepLoad, num_drafts: Numbers) -> Numbers:
        """See `StepTime.predict`."""
        num_tokens = load.num_tokens + num_drafts
        memory_s = self._bytes(load, num_tokens) / (self._bandwidth * self.efficiency)
        compute_s = self._flops(load, num_tokens) / (self._peak * self.efficiency)
        return np.maximum(memory_s, compute_s) + self._collectives_s(num_tokens) + self.overhead_s

    def step_s(self, load: StepLoad) -> float:
        """Seconds of one step."""
        return float(self.predict(load, np.zeros(1))[0])

    def intensity(self, load: StepLoad) -> Intensity:
        """Where a step lies."""
        num_tokens = np.array([float(load.num_tokens)])
        flops_per_byte = self._flops(load, num_tokens) / self._bytes(load, num_tokens)
        return Intensity(float(flops_per_byte[0]), self._peak / self._bandwidth)

    @property
    def _bandwidth(self) -> float:
        return self.hardware.bandwidth * self.num_ranks

    @property
    def _peak(self) -> float:
        return self.hardware.flops(self.model.dtype) * self.num_ranks

    def _bytes(self, load: StepLoad, num_tokens: Numbers) -> Numbers:
        kv_bytes = self.model.kv_bytes(load.num_requests, load.num_kv_tokens)
        return self.model.read_bytes(num_tokens) + kv_bytes

    def _flops(self, load: StepLoad, num_tokens: Numbers) -> Numbers:
        """A token attends to its own request; all are taken to be of the mean length."""
        mean_reads = load.num_kv_tokens / max(1, load.num_requests)
        per_token = self.model.flops_per_token + self.model.attention_flops(mean_reads)
        return num_tokens * per_token

    def _collectives_s(self, num_tokens: Numbers) -> Numbers:
        """Two all-reduces a layer, as rings (Megatron-LM, arXiv 1909.08053)."""
        if self.num_ranks == 1:
            return np.zeros_like(num_tokens)
        count = 2 * self.model.num_layers
        share = 2 * (self.num_ranks - 1) / self.num_ranks
        payload = num_tokens * self.model.hidden_size * self.model.activation_bytes
        seconds = self.hardware.link_latency_s + share * payload / self.hardware.link_bandwidth
        return count * seconds
