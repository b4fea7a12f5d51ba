"""A closed loop of load: workers that stream answer after answer, and how fast tokens arrive.

Several at once are counted in a window of time: a fixed set of requests would favour the system
whose answers all end together, since elsewhere the last ones run alone. One at a time has no such
tail, and is timed over whole answers: in a window the faster system would see other parts of the
text, and pay for the prefills of more answers.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import count, islice

from specray.cli.bench.client import Endpoint, Request
from specray.cli.bench.plan import Cell, Plan
from specray.cli.bench.workloads import load_prompts
from specray.errors import StartupError

_LONGEST_RAMP = 10  # times as long as it is to take


class TokenWindow:
    """Counts tokens while all streams are in their stride.

    It opens after the ramp, once the first answer of each stream has begun: on a slow machine the
    prefills of all of them at once, as they never come again, may take longer than the window.
    """

    def __init__(
        self, num_streams: int, ramp_s: float, window_s: float, clock: Callable[[], float]
    ) -> None:
        self.num_tokens = 0
        self._ramp_ends_at = clock() + ramp_s
        self._opens_at = clock() + _LONGEST_RAMP * ramp_s  # at the latest
        self._window_s = window_s
        self._clock = clock
        self._silent = set(range(num_streams))

    @property
    def closes_at(self) -> float:
        """As far as is known yet."""
        return self._opens_at + self._window_s

    def add(self, stream: int, num_tokens: int) -> None:
        """Takes note of tokens that have arrived just now."""
        now = self._clock()
        if self._opens_at <= now < self.closes_at:
            self.num_tokens += num_tokens
        if stream in self._silent:
            self._silent.remove(stream)
            if not self._silent:
                self._opens_at = min(self._opens_at, max(self._ramp_ends_at, now))


def make_queues(
    cell: Cell,
    prompts: Sequence[str],
    first: int,
    max_tokens: int,
    max_depth: int | None = None,
    *,
    ignore_eos: bool,
) -> list[Iterator[Request]]:
    """The endless requests of a cell, from the prompt number `first` on, once for each worker.

    They share them: who is done takes the next, so that none comes again before all have been
    asked.
    """
    requests = (
        Request(
            prompts[(first + number) % len(prompts)],
            cell.temperature,
            max_tokens,
            seed=number,  # no two answers of a window draw alike
            max_depth=max_depth,
            ignore_eos=ignore_eos,
        )
        for number in count()
    )
    return [requests] * cell.concurrency


async def run_workers(
    endpoint: Endpoint, queues: Iterable[Iterator[Request]], hear: Callable[[int], None]
) -> None:
    """One worker per queue, until all queues are empty; they may be one and the same.

    Raises:
        StartupError: if the service fails one of the requests; the others are cancelled.
    """
    await _run(endpoint, [(queue, hear) for queue in queues])


async def measure_cell(
    endpoint: Endpoint, cell: Cell, plan: Plan, round_index: int, max_depth: int | None = None
) -> float:
    """Tokens per second of a cell, in answers that end where the model ends them.

    Args:
        endpoint: the service.
        cell: what is asked for.
        plan: how long to look.
        round_index: which prompts come first.
        max_depth: caps the depth of all requests; None leaves it to the service.

    Raises:
        StartupError: if the service fails a request, or says nothing for a whole window.
    """
    prompts, first = load_prompts(cell.workload), plan.first_prompt(cell, round_index)
    queues = make_queues(cell, prompts, first, plan.max_tokens, max_depth, ignore_eos=False)
    return await measure_speed(endpoint, queues, plan)


async def measure_speed(
    endpoint: Endpoint, queues: Sequence[Iterator[Request]], plan: Plan
) -> float:
    """Tokens per second of these workers together.

    Raises:
        StartupError: if the service fails a request, or says nothing for a whole window.
    """
    if len(queues) == 1:
        return await time_answers(endpoint, islice(queues[0], plan.num_answers))
    num_tokens = await count_tokens(endpoint, queues, ramp_s=plan.ramp_s, window_s=plan.window_s)
    return num_tokens / plan.window_s


async def time_answers(endpoint: Endpoint, requests: Iterator[Request]) -> float:
    """Tokens per second of whole answers, one after the other, prefill included.

    Raises:
        StartupError: if the service fails a request.
    """
    clock = asyncio.get_running_loop().time
    counts: list[int] = []
    started = clock()
    await _work(endpoint, requests, counts.append)
    return sum(counts) / (clock() - started)


async def count_tokens(
    endpoint: Endpoint, queues: Sequence[Iterator[Request]], *, ramp_s: float, window_s: float
) -> int:
    """The tokens that arrive in the window after the ramp; all streams are closed at its end.

    Raises:
        StartupError: if the service fails a request, or if nothing arrives in the window.
    """
    window = TokenWindow(len(queues), ramp_s, window_s, asyncio.get_running_loop().time)
    with suppress(TimeoutError):
        async with asyncio.timeout_at(window.closes_at) as timeout:

            def hear(stream: int, num_tokens: int) -> None:
                window.add(stream, num_tokens)
                if timeout.when() != window.closes_at:
                    timeout.reschedule(window.closes_at)

            await _run(endpoint, [(queue, partial(hear, i)) for i, queue in enumerate(queues)])
    if not window.num_tokens:
        raise StartupError(
            f"no token arrived in {window_s:g} s after a ramp of {ramp_s:g} s or more; "
            "the service is stuck, or far too slow to be measured"
        )
    return window.num_tokens


async def _run(
    endpoint: Endpoint, workers: Iterable[tuple[Iterator[Request], Callable[[int], None]]]
) -> None:
    try:
        async with asyncio.TaskGroup() as tasks:
            for queue, hear in workers:
                tasks.create_task(_work(endpoint, queue, hear))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from errors


async def _work(endpoint: Endpoint, queue: Iterator[Request], hear: Callable[[int], None]) -> None:
    for request in queue:
        await endpoint.complete(request, hear)
