"""What one streamed answer says about speed, as `vllm bench serve` defines it."""

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise


class BrokenAnswerError(Exception):
    """The service ended an answer with an error, or without its usage."""


@dataclass(slots=True)
class Timing:
    """Times in seconds."""

    ttft_s: float  # first text since the request was sent
    e2e_s: float  # last text since then
    num_tokens: int  # as the service counted them
    gaps_s: list[float] = field(
        default_factory=list
    )  # ITL: between chunks, of whatever many tokens

    @property
    def tpot_s(self) -> float | None:
        """Seconds per token after the first; None for an answer of one."""
        if self.num_tokens < 2:
            return None
        return (self.e2e_s - self.ttft_s) / (self.num_tokens - 1)


def read_answer(
    lines: Iterable[bytes], started: float, clock: Callable[[], float] = time.perf_counter
) -> Timing:
    """Read a chat completion's events to their end.

    Raises:
        BrokenAnswerError: it holds an error, no text, or no usage.
    """
    times: list[float] = []
    num_tokens = 0
    for line in lines:
        data = line.strip().removeprefix(b"data: ")
        if not data or data == b"[DONE]":
            continue
        now = clock()
        chunk = json.loads(data)
        if "error" in chunk:
            raise BrokenAnswerError(chunk["error"].get("message", data.decode()))
        if any(choice["delta"].get("content") for choice in chunk["choices"]):
            times.append(now)
        num_tokens = (chunk.get("usage") or {}).get("completion_tokens", num_tokens)
    if not times or not num_tokens:
        raise BrokenAnswerError(f"the answer ended with {len(times)} chunks of text and no usage")
    gaps = [after - before for before, after in pairwise(times)]
    return Timing(times[0] - started, times[-1] - started, num_tokens, gaps)
