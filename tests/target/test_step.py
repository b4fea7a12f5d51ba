from types import SimpleNamespace
from typing import Any

import pytest
from vllm.sampling_params import SamplingParams

from specray.control.planner import Surroundings
from specray.control.roofline import StepLoad
from specray.target import step
from specray.types import Proposal


def request(
    num_tokens: int, num_computed: int, *, is_chunk: bool = False, temperature: float = 0.0
) -> Any:
    return SimpleNamespace(
        num_tokens=num_tokens,
        num_computed_tokens=num_computed,
        is_prefill_chunk=is_chunk,
        sampling_params=SamplingParams(temperature=temperature),
    )


def surroundings(
    running: list[Any],
    waiting: tuple[Any, ...] = (),
    budget: int = 2048,
    free_blocks: int = 1000,
    is_queue_stuck: bool = False,
) -> Surroundings:
    pool = SimpleNamespace(get_num_free_blocks=lambda: free_blocks)
    scheduler: Any = SimpleNamespace(
        running=running,
        waiting=waiting,
        max_num_running_reqs=8,
        max_num_scheduled_tokens=budget,
        block_size=16,
        kv_cache_manager=SimpleNamespace(block_pool=pool),
    )
    return step.surroundings(scheduler, is_queue_stuck=is_queue_stuck)


DECODING = [request(101, 100), request(201, 200)]


def test_decoding_requests_leave_the_rest_of_the_budget() -> None:
    assert surroundings(DECODING) == Surroundings(300, 0, 0, 2046)


def test_requests_that_sample_are_counted_once_they_decode() -> None:
    sampling = request(101, 100, temperature=0.7)
    prompt = request(900, 400, is_chunk=True, temperature=0.7)

    assert surroundings([*DECODING, sampling, prompt]).num_sampled == 1


def test_prefills_that_go_on_and_that_wait_are_counted_and_come_first() -> None:
    chunk = request(900, 400, is_chunk=True)

    assert surroundings([*DECODING, chunk], (request(300, 0),)) == Surroundings(
        700, 2, 800, 2045 - 800
    )


def test_a_prefill_that_fills_the_step_leaves_no_room() -> None:
    assert surroundings(DECODING, (request(5000, 0),)) == Surroundings(300, 1, 2046, 0)


def test_a_queue_that_does_not_move_is_not_waited_for() -> None:
    assert surroundings(DECODING, (request(500, 0),), is_queue_stuck=True).num_prefill_tokens == 0


def test_only_so_many_wait_as_there_are_places() -> None:
    running = [request(11, 10)] * 7

    assert surroundings(running, (request(5, 0),) * 4).num_prefill_tokens == 5


@pytest.mark.parametrize(("free_blocks", "most"), [(0, 0), (2, 0), (3, 16), (10, 128)])
def test_kv_blocks_that_requests_need_for_themselves_are_not_taken(
    free_blocks: int, most: int
) -> None:
    assert surroundings(DECODING, free_blocks=free_blocks).max_drafts == most


@pytest.mark.parametrize(("num_tokens", "num_filled"), [(16, 1), (17, 2), (500, 32)])
@pytest.mark.parametrize("is_waiting", [False, True])
def test_kv_blocks_that_chunks_fill_are_not_taken(
    num_tokens: int, num_filled: int, is_waiting: bool
) -> None:
    chunk = request(400 + num_tokens, 400, is_chunk=not is_waiting)
    running, waiting = ([*DECODING], (chunk,)) if is_waiting else ([*DECODING, chunk], ())

    for more, most in ((0, 0), (3, 48)):
        free_blocks = len(DECODING) + 1 + num_filled + more
        assert surroundings(running, waiting, free_blocks=free_blocks).max_drafts == most


def test_a_budget_smaller_than_the_batch_leaves_nothing() -> None:
    assert surroundings(DECODING, budget=1).max_drafts == 0


def test_a_steps_sampled_tokens_are_those_that_are_drawn_after() -> None:
    requests = {
        "greedy": request(104, 104),
        "sampled": request(204, 204, temperature=0.7),
        "chunk": request(900, 400, is_chunk=True, temperature=0.7),
    }
    output: Any = SimpleNamespace(
        num_scheduled_tokens={"greedy": 4, "sampled": 3, "chunk": 400},
        scheduled_spec_decode_tokens={"greedy": [1, 2, 3], "sampled": [4, 5]},
        total_num_scheduled_tokens=407,
    )

    assert step.load(output, requests) == StepLoad(
        3, 407, 104 + 204 + 400, num_sampled=3, num_prefill_tokens=400
    )


def test_a_timeline_is_told_of_each_request_in_the_order_of_the_step() -> None:
    output: Any = SimpleNamespace(
        num_scheduled_tokens={"b": 4, "plain": 300, "a": 1, "drafted": 3},
        scheduled_spec_decode_tokens={"b": [5, 6, 7], "drafted": [8, 9]},
    )
    proposals = {"b": Proposal(2, 10, 4, (5, 6, 7), "prompt_lookup")}

    assert step.facts(output, proposals, {"a": 1, "b": 2, "drafted": 3}) == {
        "sessions": [2, None, 1, 3],
        "depths": [3, 0, 0, 2],
        "sources": ["prompt_lookup", None, None, None],
    }
