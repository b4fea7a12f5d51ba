from itertools import islice

import pytest

from specray.cli.bench.client import Endpoint
from specray.cli.bench.load import TokenWindow, count_tokens, make_queues, measure_speed
from specray.cli.bench.plan import Cell, Plan
from specray.errors import StartupError
from tests.cli.fake_openai import FakeOpenAI, run_virtual

PROMPTS = [f"prompt {i}" for i in range(10)]


def count(fake: FakeOpenAI, *, concurrency: int = 1, max_tokens: int = 160) -> int:
    queues = make_queues(Cell("chat", concurrency, 0.0), PROMPTS, 0, max_tokens, ignore_eos=False)

    async def work() -> int:
        endpoint = Endpoint("http://fake", fake)
        try:
            return await count_tokens(endpoint, queues, ramp_s=2.0, window_s=6.0)
        finally:
            await endpoint.close()

    return run_virtual(work())


def test_only_tokens_inside_the_window_count() -> None:
    now = [0.0]
    window = TokenWindow(1, 2.0, 6.0, lambda: now[0])

    for now[0], num_tokens in [(1.9, 1), (2.0, 10), (7.9, 100), (8.0, 1000)]:
        window.add(0, num_tokens)

    assert window.num_tokens == 110


def test_the_window_opens_once_all_streams_have_begun() -> None:
    now = [0.0]
    window = TokenWindow(2, 2.0, 6.0, lambda: now[0])

    for now[0], stream, num_tokens in [(1.0, 0, 1), (3.0, 0, 2), (4.0, 1, 4), (9.9, 0, 8)]:
        window.add(stream, num_tokens)

    assert window.closes_at == 10.0
    assert window.num_tokens == 8  # what opens it was made before


def test_the_window_does_not_wait_for_ever_for_a_stream() -> None:
    now = [0.0]
    window = TokenWindow(2, 2.0, 6.0, lambda: now[0])

    for now[0] in (1.0, 19.0, 20.0, 25.0, 26.0):
        window.add(0, 1)

    assert window.num_tokens == 2


def test_tokens_of_the_ramp_and_after_the_window_do_not_count() -> None:
    # A chunk of 3 each 0.5 s: those at 2.0, 2.5, ... 7.5 s of an answer that takes 27 s.
    assert count(FakeOpenAI(tokens_on=3)) == 12 * 3


def test_a_chunk_larger_than_the_window_counts_when_it_arrives() -> None:
    assert count(FakeOpenAI(chunk_every_s=5.0, tokens_on=40)) == 40  # at 10, after 5 opened it


@pytest.mark.parametrize(("max_depth", "speed"), [(0, 2.0), (None, 6.0)])
def test_one_at_a_time_is_timed_over_the_same_whole_answers(
    max_depth: int | None, speed: float
) -> None:
    fake = FakeOpenAI()
    plan = Plan((), num_rounds=1, num_answers=3, ramp_s=2.0, window_s=6.0)

    async def work() -> float:
        endpoint = Endpoint("http://fake", fake)
        queues = make_queues(Cell("chat", 1, 0.0), PROMPTS, 0, 30, max_depth, ignore_eos=False)
        try:
            return await measure_speed(endpoint, queues, plan)
        finally:
            await endpoint.close()

    assert run_virtual(work()) == pytest.approx(speed)
    assert [body["messages"][0]["content"] for body in fake.bodies] == PROMPTS[:3]


@pytest.mark.parametrize("concurrency", [1, 3])
def test_answers_follow_each_other_without_a_gap(concurrency: int) -> None:
    fake = FakeOpenAI()

    num_tokens = count(fake, concurrency=concurrency, max_tokens=6)  # 1 s each

    assert num_tokens == concurrency * 12 * 3
    assert len(fake.bodies) == concurrency * 8
    assert fake.most_open == concurrency


def test_all_streams_are_closed_at_the_end_of_the_window() -> None:
    fake = FakeOpenAI()

    count(fake, concurrency=8)

    assert fake.most_open == 8
    assert fake.num_open == 0


def test_a_service_that_says_nothing_is_reported() -> None:
    with pytest.raises(StartupError, match="no token arrived in 6 s"):
        count(FakeOpenAI(chunk_every_s=100.0))


def test_a_failed_answer_ends_the_measurement_and_closes_the_others() -> None:
    fake = FakeOpenAI(alter=lambda chunk: chunk.update(usage=None))

    with pytest.raises(StartupError, match="continuous_usage_stats"):
        count(fake, concurrency=3)
    assert fake.num_open == 0


def test_whoever_is_done_asks_the_next_prompt() -> None:
    queues = make_queues(Cell("chat", 4, 0.0), PROMPTS, 1, 160, ignore_eos=False)

    asked = [next(queues[worker]).prompt for worker in (0, 1, 2, 3, 0, 0, 2, 0, 1, 0, 3)]

    assert asked == [*PROMPTS[1:], PROMPTS[0], PROMPTS[1]]


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_answers_end_where_the_model_ends_them_unless_their_length_is_given(
    *, ignore_eos: bool
) -> None:
    (queue,) = make_queues(Cell("chat", 1, 0.0), PROMPTS, 0, 160, ignore_eos=ignore_eos)
    assert next(queue).ignore_eos is ignore_eos


def test_no_two_answers_of_a_cell_share_a_seed() -> None:
    queues = make_queues(Cell("chat", 8, 1.0), PROMPTS, 0, 160, ignore_eos=False)

    seeds = [request.seed for queue in queues for request in islice(queue, 20)]

    assert len(set(seeds)) == len(seeds)
