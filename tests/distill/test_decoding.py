"""Recordings are real on a GPU only; here they repeat the same computation on the same tensors."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from specray.distill import decoding
from specray.distill.decoding import Recorders
from specray.distill.generation import SampleRequest
from specray.distill.row_cache import GROUPED_ATTENTION
from specray.distill.transformers_engine import TransformersGenerator
from specray.models.cuda import Replay

REQUESTS = [SampleRequest(tuple(range(3, 4 + 3 * i)), i, 150 - 9 * i, i % 2) for i in range(10)]


@pytest.fixture(scope="module")
def model(target: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(
        target, dtype=torch.float32, attn_implementation=GROUPED_ATTENTION
    )


class Recorder:
    """Counts recordings and replays."""

    def __init__(self) -> None:
        self.num_recordings = self.num_replays = 0

    def __call__(self, run: Callable[[], None]) -> Replay:
        self.num_recordings += 1
        run()  # as a warm-up does

        def replay() -> None:
            self.num_replays += 1
            run()

        return replay


def texts(model: Any, recorders: Recorders | None = None) -> list[list[int]]:
    generator = TransformersGenerator(model, frozenset({0}), 5, recorders=recorders)
    return [found.token_ids.tolist() for found in generator.generate(REQUESTS, top_k=3)]


def test_replayed_passes_give_the_same_texts(model: Any, caplog: pytest.LogCaptureFixture) -> None:
    plain = texts(model)
    recorder = Recorder()

    assert texts(model, Recorders(lambda: recorder)) == plain
    assert max(map(len, plain)) > 2 * decoding._COLUMNS
    assert 4 <= recorder.num_recordings < recorder.num_replays / 4
    assert not caplog.records


def test_without_recordings_it_goes_on(model: Any, caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: Callable[[], None]) -> Replay:
        raise RuntimeError("operation not permitted when stream is capturing")

    with caplog.at_level(logging.WARNING):
        assert texts(model, Recorders(lambda: fail)) == texts(model)

    (record,) = caplog.records  # the second batch does not try again
    assert "without CUDA graphs, as one failed: operation not permitted" in record.message


@pytest.mark.skipif(not torch.cuda.is_available(), reason="GPU")
def test_a_gpu_gives_the_same_texts(target: Path, caplog: pytest.LogCaptureFixture) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(
        target, dtype=torch.float32, attn_implementation=GROUPED_ATTENTION
    )
    model = model.to("cuda")

    assert texts(model) == texts(model, Recorders(None))
    assert "without CUDA graphs" not in caplog.text


def test_passes_are_recorded_on_a_gpu_only() -> None:
    assert Recorders.of(torch.device("cpu")).make() is None
    assert Recorders.of(torch.device("cuda")).make() is not None  # touches no device yet


def test_one_batch_without_memory_for_recordings_says_nothing_of_the_next(model: Any) -> None:
    recorder, num_calls = Recorder(), [0]

    def record(run: Callable[[], None]) -> Replay:
        num_calls[0] += 1
        if num_calls[0] == 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return recorder(run)

    assert texts(model, Recorders(lambda: record)) == texts(model)
    assert recorder.num_recordings > 1
