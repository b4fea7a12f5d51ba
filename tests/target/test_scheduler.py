import itertools
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import pytest
from vllm.platforms import current_platform
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from specray.control.hardware import HardwareProfile
from specray.control.planner import Planner, Surroundings
from specray.control.roofline import ModelShape, Roofline, StepLoad
from specray.observability.journal import Journal
from specray.target import hardware, threads
from specray.target.scheduler import SpeculativeScheduler
from specray.target.worker import HARDWARE
from tests.wire.fakes import RecordedTimeline


def request(num_tokens: int, num_computed: int) -> Any:
    return SimpleNamespace(
        num_tokens=num_tokens,
        num_computed_tokens=num_computed,
        is_prefill_chunk=False,
        sampling_params=SamplingParams(temperature=0.0),
    )


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
    scheduler._streams, scheduler._timeline = Mock(), RecordedTimeline()
    speculating = {"specray_router": "r", "specray_request_id": "the client's"}
    for name, args in (("speculating", speculating), ("plain", {})):
        new = Request(name, [5, 6, 7], SamplingParams(max_tokens=9, extra_args=args), None)
        scheduler.add_request(new)
        scheduler.add_request(new)  # more input for it

    assert scheduler._speculation.open.call_count == 1
    assert scheduler._speculation.observe_arrival.call_count == 2
    assert scheduler._load_meter.observe_arrival.call_count == 2
    names = {"session": 1, "request": "the client's", "vllm_request": "speculating"}
    assert scheduler._timeline.events == [("request arrived", names)]


@pytest.mark.parametrize("is_cpu", [True, False])
def test_on_a_cpu_all_but_the_streams_leave_the_models_core_once_vllms_threads_run(
    monkeypatch: pytest.MonkeyPatch, is_cpu: bool
) -> None:
    """On a GPU the model needs no core of its own, and an operator's binding is to be kept."""
    cleared = Mock()
    monkeypatch.setattr(threads, "clear_the_models_core", cleared)
    monkeypatch.setattr(current_platform, "is_cpu", lambda: is_cpu)
    scheduler: Any = SpeculativeScheduler.__new__(SpeculativeScheduler)
    scheduler._is_settled, scheduler._server = False, SimpleNamespace(thread_id=7)
    scheduler._inject = Mock(side_effect=InterruptedError)
    for _ in range(2):
        with pytest.raises(InterruptedError):
            scheduler.schedule()

    assert cleared.call_args_list == ([call(free={7})] if is_cpu else [])


def test_commits_ask_for_what_the_step_that_comes_has_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not for what there was room for in the step before, with a prefill that has ended."""
    decoding = request(101, 100)
    decoding.request_id = "a"
    monkeypatch.setattr(Scheduler, "update_from_output", lambda *_: {})
    scheduler: Any = SpeculativeScheduler.__new__(SpeculativeScheduler)
    scheduler._planner, scheduler._load_meter, scheduler._speculation = Mock(), Mock(), Mock()
    scheduler._timeline, scheduler._journal = RecordedTimeline(), Mock(is_on=False)
    scheduler._step = SimpleNamespace(started=0.0, proposals={}, load=StepLoad(2, 501, 0, 0, 500))
    scheduler._session_ids, scheduler._draftless = {"a": 1}, set()
    scheduler.requests, scheduler.running, scheduler.waiting = {"a": decoding}, [decoding], ()
    scheduler._is_queue_stuck, scheduler.block_size = False, 16
    scheduler.max_num_running_reqs, scheduler.max_num_scheduled_tokens = 8, 2048
    scheduler.kv_cache_manager = Mock()
    scheduler.kv_cache_manager.block_pool.get_num_free_blocks.return_value = 1000
    scheduler.update_from_output(
        SimpleNamespace(
            num_scheduled_tokens={"a": 1},
            num_spec_tokens_to_schedule=0,
            scheduled_spec_decode_tokens={},
        ),
        ModelRunnerOutput(["a"], {"a": 0}),
    )

    facts = {"sessions": [1], "depths": [0], "sources": [None]}
    assert scheduler._timeline.events == [("verify", facts)]
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
    scheduler._drafter_context = Mock()
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
    assert [call.args for call in scheduler._drafter_context.forget.call_args_list] == [
        ("a",),
        ("b",),
    ]


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
