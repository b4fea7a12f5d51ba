"""Recordings are real on a GPU only; here they repeat the same computation on the same tensors."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from specray.distill import decoding, transformers_engine
from specray.distill.generation import SampleRequest
from specray.distill.row_cache import GROUPED_ATTENTION
from specray.distill.transformers_engine import TransformersGenerator
from specray.models.cuda import Replay

CUDA = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="GPU"))
REQUESTS = [
    SampleRequest(tuple(range(3, 4 + 3 * i)), seed, 150 - 9 * i, i % 2) for i, seed in
    enumerate(range(10))
]  # fmt: skip


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


def texts(model: Any) -> list[list[int]]:
    generator = TransformersGenerator(model, frozenset({0}), num_at_once=5)
    return [found.token_ids.tolist() for found in generator.generate(REQUESTS, top_k=3)]


def patch_recorder(monkeypatch: pytest.MonkeyPatch, record: Any) -> None:
    class Recording(decoding.Decoder):
        def __init__(self, model: Any, cache: Any, pads: Any) -> None:
            super().__init__(model, cache, pads, record)

    monkeypatch.setattr(transformers_engine, "Decoder", Recording)


def test_replayed_passes_give_the_same_texts(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = texts(model)
    recorder = Recorder()
    patch_recorder(monkeypatch, recorder)

    assert texts(model) == plain
    assert max(map(len, plain)) > 2 * decoding._COLUMNS
    assert 4 <= recorder.num_recordings < recorder.num_replays / 4


def test_without_recordings_it_goes_on(
    model: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plain = texts(model)

    def fail(_: Callable[[], None]) -> Replay:
        raise RuntimeError("operation not permitted when stream is capturing")

    patch_recorder(monkeypatch, fail)
    with caplog.at_level(logging.WARNING):
        assert texts(model) == plain

    assert "without CUDA graphs, as one failed: operation not permitted" in caplog.text


@pytest.mark.parametrize("device", [CUDA])
def test_a_gpu_gives_the_same_texts(
    target: Path, device: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(
        target, dtype=torch.float32, attn_implementation=GROUPED_ATTENTION
    )
    model = model.to(device)
    recorded = texts(model)
    assert "without CUDA graphs" not in caplog.text

    class Plain(decoding.Decoder):
        def __call__(self, tokens: Any, column: int) -> Any:
            self._record_run = None
            return super().__call__(tokens, column)

    monkeypatch.setattr(transformers_engine, "Decoder", Plain)
    assert texts(model) == recorded
