import itertools
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from specray.control.hardware import HardwareProfile
from specray.control.planner import Planner, Surroundings
from specray.control.roofline import ModelShape, Roofline, StepLoad
from specray.observability.journal import Journal
from specray.target import hardware
from specray.target.scheduler import SpeculativeScheduler
from specray.target.worker import HARDWARE


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
        _is_queue_stuck=is_queue_stuck,
    )
    scheduler._kv_room = partial(SpeculativeScheduler._kv_room, scheduler)
    return SpeculativeScheduler._surroundings(scheduler)


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

    load = SpeculativeScheduler._load(SimpleNamespace(requests=requests), output)

    assert load == StepLoad(3, 407, 104 + 204 + 400, num_sampled=3, num_prefill_tokens=400)


def test_every_request_counts_once_as_it_arrives_also_one_that_may_not_speculate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        Scheduler, "add_request", lambda self, new: self.requests.setdefault(new.request_id, new)
    )
    scheduler: Any = SpeculativeScheduler.__new__(SpeculativeScheduler)
    scheduler.requests, scheduler._draftless, scheduler._session_ids = {}, set(), {}
    scheduler._next_session_id = itertools.count(1)
    scheduler._trusts_distributions, scheduler.max_model_len = True, 100
    scheduler._journal, scheduler._load_meter, scheduler._speculation = Mock(), Mock(), Mock()
    for name, args in (("speculating", {"specray_router": "r"}), ("plain", {})):
        new = Request(name, [5, 6, 7], SamplingParams(max_tokens=9, extra_args=args), None)
        scheduler.add_request(new)
        scheduler.add_request(new)  # more input for it

    assert scheduler._speculation.open.call_count == 1
    assert scheduler._speculation.observe_arrival.call_count == 2
    assert scheduler._load_meter.observe_arrival.call_count == 2


def test_commits_ask_for_what_the_step_that_comes_has_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not for what there was room for in the step before, with a prefill that has ended."""
    decoding = request(101, 100)
    decoding.request_id = "a"
    monkeypatch.setattr(Scheduler, "update_from_output", lambda *_: {})
    scheduler: Any = SpeculativeScheduler.__new__(SpeculativeScheduler)
    scheduler._planner, scheduler._load_meter, scheduler._speculation = Mock(), Mock(), Mock()
    scheduler._timeline, scheduler._journal = Mock(is_on=False), Mock(is_on=False)
    scheduler._step = SimpleNamespace(
        started=0.0, proposals={}, load=StepLoad(2, 501, 0, 0, 500), is_decode_only=False
    )
    scheduler._session_ids, scheduler._draftless = {"a": 1}, set()
    scheduler.requests, scheduler.running, scheduler.waiting = {"a": decoding}, [decoding], ()
    scheduler._is_queue_stuck, scheduler.block_size = False, 16
    scheduler.max_num_running_reqs, scheduler.max_num_scheduled_tokens = 8, 2048
    scheduler.kv_cache_manager = Mock()
    scheduler.kv_cache_manager.block_pool.get_num_free_blocks.return_value = 1000
    scheduler.update_from_output(
        SimpleNamespace(num_scheduled_tokens={"a": 1}), ModelRunnerOutput(["a"], {"a": 0})
    )

    names = [call[0] for call in scheduler._speculation.method_calls]
    assert names[-2:] == ["expect", "commit"]
    (expected,) = scheduler._speculation.expect.call_args.args
    assert expected == Surroundings(100, 0, 0, 2047)


def test_a_request_says_at_its_end_what_became_of_its_proposals(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Scheduler, "_free_request", lambda *_: None)
    scheduler: Any = SpeculativeScheduler.__new__(SpeculativeScheduler)
    scheduler._draftless, scheduler._session_ids = set(), {"a": 1}
    scheduler._load_meter, scheduler._speculation = Mock(), Mock()
    scheduler._speculation.close.return_value = SimpleNamespace(
        num_hits=5, num_late=2, num_absent=1
    )
    scheduler._journal = Journal("specray.target", is_logging=True)
    for name in ("a", "b"):  # the latter may not speculate
        scheduler._journal.begin(name, name, "")
        status = SimpleNamespace(name="FINISHED_STOPPED")
        with caplog.at_level("INFO", "specray.sessions"):
            scheduler._free_request(
                SimpleNamespace(request_id=name, num_output_tokens=9, status=status)
            )

    first, second = (record.getMessage() for record in caplog.records)
    assert "hits=5 late=2 misses=1 output_tokens=9" in first
    assert "hits" not in second


def test_what_the_worker_measured_is_learnt_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def roofline(_: Any, configured: str, measured: HardwareProfile) -> Roofline:
        assert configured == "auto"
        return Roofline(ModelShape(1e9, 2e9, 1e5, 16, 2048), measured)

    monkeypatch.setattr(hardware, "find_roofline", roofline)
    scheduler: Any = SimpleNamespace(_planner=Planner(), _hardware="auto", vllm_config=None)
    silent, first, second = (ModelRunnerOutput(["a"], {"a": 0}) for _ in range(3))
    for output, name in ((first, "measured"), (second, "measured again")):
        profile = HardwareProfile(name, 1e12, {"bfloat16": 1e14}, 3e10)
        setattr(output, HARDWARE, profile.state())
    names = []
    for output in (silent, first, second):
        SpeculativeScheduler._learn_hardware(scheduler, output)
        names.append(scheduler._planner.hardware)

    assert names == ["", "measured", "measured"]
    assert scheduler._planner.step_time.step_s(StepLoad(1, 1, 0)) == pytest.approx(2e9 / 1e12)
