import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from vllm.config import CompilationMode
from vllm.platforms import current_platform
from vllm.v1.outputs import ModelRunnerOutput

from specray.control.hardware import HardwareProfile
from specray.target import (
    drawing,
    float_products,
    greedy,
    hardware,
    norms,
    products,
    rejection,
    top_p,
    workarounds,
)
from specray.target import worker as worker_module
from specray.target.names import HARDWARE_KEY
from specray.target.worker import HARDWARE, SpecrayWorker, dense_draft_probs
from specray.types import TruncatedDistributions

VOCAB_SIZE = 7


def metadata(draft_token_ids: list[int], num_draft_tokens: list[int]) -> Any:
    return SimpleNamespace(
        draft_token_ids=torch.tensor(draft_token_ids, dtype=torch.int32),
        num_draft_tokens=num_draft_tokens,
    )


def q(*rows: dict[int, float], support: int = 3) -> TruncatedDistributions:
    ids = np.zeros((len(rows), support), np.int32)
    probabilities = np.zeros((len(rows), support), np.float32)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = list(row)
        probabilities[i, : len(row)] = list(row.values())
    for array in (ids, probabilities):
        array.flags.writeable = False  # as it comes over the wire
    return TruncatedDistributions(ids, probabilities)


@pytest.mark.filterwarnings("error")
def test_each_request_gets_its_own_rows() -> None:
    distributions = {
        "b": q({2: 0.75, 5: 0.25}, {0: 1.0}),
        "d": q({6: 0.5, 1: 0.25, 0: 0.25}, {3: 1.0}, {4: 1.0}),  # more rows than were scheduled
        "e": q({1: 1.0}),
    }
    probs = dense_draft_probs(
        ["a", "b", "c", "d", "e"],
        metadata([3, 4, 5, 0, 6, 1], [2, 2, 0, 1, 1]),
        distributions,
        VOCAB_SIZE,
    )
    expected = torch.tensor(
        [
            [0, 0, 0, 1, 0, 0, 0],  # a: point masses
            [0, 0, 0, 0, 1, 0, 0],
            [0, 0, 0.75, 0, 0, 0.25, 0],
            [1, 0, 0, 0, 0, 0, 0],
            [0.25, 0.25, 0, 0, 0, 0, 0.5],
            [0, 1, 0, 0, 0, 0, 0],
        ]
    )
    assert probs.dtype == torch.float32
    assert probs.is_contiguous()
    assert torch.equal(probs, expected)


def test_rows_add_up_to_1_though_what_came_does_not_quite() -> None:
    rounded = {"a": q({2: 0.7505, 5: 0.25})}
    probs = dense_draft_probs(["a"], metadata([2], [1]), rounded, VOCAB_SIZE)

    assert probs.sum().item() == pytest.approx(1.0, abs=1e-6)
    assert probs[0, 2].item() == pytest.approx(0.7505 / 1.0005)


def test_nothing_verified_gives_no_rows() -> None:
    probs = dense_draft_probs(["a"], metadata([], [0]), {"a": q({1: 1.0})}, VOCAB_SIZE)
    assert probs.shape == (0, VOCAB_SIZE)


@pytest.mark.skipif(not current_platform.is_cpu(), reason="for CPUs")
@pytest.mark.parametrize("is_eager", [True, False])
def test_a_cpus_worker_draws_and_verifies_by_our_own_code(
    monkeypatch: pytest.MonkeyPatch, *, is_eager: bool
) -> None:
    class Runner:
        speculative_config = None

    installed = []
    monkeypatch.setattr(workarounds, "apply_to_worker", lambda: None)
    eager = [float_products, norms] if is_eager else []
    expected = [drawing, greedy, products, rejection, top_p, *eager]
    for part in (drawing, float_products, greedy, norms, products, rejection, top_p):
        monkeypatch.setattr(part, "install", lambda part=part: installed.append(part))

    def build_model_runner(worker: Any) -> None:
        assert installed == expected
        worker.use_v2_model_runner, worker.model_runner = False, Runner()
        worker.device = torch.device("cpu")

    monkeypatch.setattr(SpecrayWorker.__base__, "init_device", build_model_runner)
    worker = object.__new__(SpecrayWorker)
    mode = CompilationMode.NONE if is_eager else CompilationMode.VLLM_COMPILE
    compilation = SimpleNamespace(mode=mode)
    worker.vllm_config = SimpleNamespace(compilation_config=compilation)
    worker.init_device()


def test_a_gpus_worker_tells_once_what_it_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    class Runner:
        speculative_config = None

    outputs = [ModelRunnerOutput([], {}), *(ModelRunnerOutput(["a"], {"a": 0}) for _ in range(2))]
    profile = HardwareProfile("new", 1e12, {"bfloat16": 1e14}, 3e10)

    def build_model_runner(worker: Any) -> None:
        worker.use_v2_model_runner, worker.model_runner = False, Runner()
        worker.device = torch.device("cuda:1")

    base = SpecrayWorker.__base__
    monkeypatch.setattr(worker_module, "current_platform", SimpleNamespace(is_cpu=lambda: False))
    monkeypatch.setattr(workarounds, "apply_to_worker", lambda: None)
    monkeypatch.setattr(base, "init_device", build_model_runner)
    rest = iter(outputs)
    monkeypatch.setattr(base, "sample_tokens", lambda *_: next(rest))
    measured = []
    monkeypatch.setattr(
        hardware, "measure_device", lambda *args: measured.append(args[1:]) or profile
    )
    worker: Any = object.__new__(SpecrayWorker)
    worker.vllm_config = SimpleNamespace(additional_config={HARDWARE_KEY: "auto"})
    worker.init_device()
    told = [getattr(worker.sample_tokens(None), HARDWARE, None) for _ in outputs]

    assert measured == [("auto", torch.device("cuda:1"))]
    assert told == [None, profile.state(), None]
    assert getattr(pickle.loads(pickle.dumps(outputs[1])), HARDWARE) == profile.state()
