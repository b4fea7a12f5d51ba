"""An open loop of load: answers are asked for at given times, and their tokens are timed."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from specray.cli.bench.client import Endpoint, Request


@dataclass(slots=True)
class Answer:
    """When one answer was asked for, and when its tokens came. Seconds since the load began."""

    asked_s: float
    chunks: list[tuple[float, int]] = field(default_factory=list)  # when, and how many tokens

    @property
    def num_tokens(self) -> int:
        """Of the whole answer."""
        return sum(count for _, count in self.chunks)

    @property
    def ttft_s(self) -> float:
        """Time to the first token."""
        return self.chunks[0][0] - self.asked_s

    @property
    def tpot_s(self) -> float:
        """Time per token after the first chunk."""
        after = self.num_tokens - self.chunks[0][1]
        return (self.ended_s - self.chunks[0][0]) / max(1, after)

    @property
    def ended_s(self) -> float:
        """When the last token came."""
        return self.chunks[-1][0]

    @property
    def tokens_per_s(self) -> float:
        """What its reader sees, waiting included."""
        return self.num_tokens / (self.ended_s - self.asked_s)


async def ask_all(
    endpoint: Endpoint, requests: Sequence[Request], arrivals_s: Sequence[float]
) -> list[Answer]:
    """Ask each request at its time, and hear all answers to their end.

    Raises:
        StartupError: if the service fails one of them; the others are cancelled.
    """
    clock = asyncio.get_running_loop().time
    began = clock()

    async def ask(request: Request, at_s: float) -> Answer:
        await asyncio.sleep(began + at_s - clock())
        answer = Answer(at_s)
        await endpoint.complete(
            request, lambda count: answer.chunks.append((clock() - began, count))
        )
        return answer

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(ask(request, at_s))
                for request, at_s in zip(requests, arrivals_s, strict=True)
            ]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from errors
    return [task.result() for task in tasks]
