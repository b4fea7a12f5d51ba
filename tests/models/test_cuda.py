from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from unittest.mock import MagicMock

import pytest
import torch

from specray.models import cuda


@pytest.mark.parametrize(
    ("device", "told"), [("cpu", []), ("cuda", [False]), (torch.device("cuda", 1), [False])]
)
def test_cudnns_attention_is_off_on_a_gpu(
    monkeypatch: pytest.MonkeyPatch, device: str | torch.device, told: list[bool]
) -> None:
    calls: list[bool] = []
    monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", calls.append)
    cuda.prepare(device)
    assert calls == told


class FakeGraph:
    """Notes what happens to it, in turn."""

    def __init__(self) -> None:
        self.events: list[object] = []

    def register_generator_state(self, generator: object) -> None:
        self.events.append(generator)

    def replay(self) -> None:
        self.events.append("replay")


def test_a_recording_knows_the_generator_that_it_draws_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only then does the generator go on with each replay: else all draw the same numbers."""
    graph, stream = FakeGraph(), MagicMock()

    @contextmanager
    def recording(recorded: FakeGraph, **_: object) -> Iterator[None]:
        recorded.events.append("begin")
        yield
        recorded.events.append("end")

    for name, fake in {
        "CUDAGraph": lambda: graph,
        "Stream": lambda: stream,
        "current_stream": lambda: stream,
        "stream": lambda _: nullcontext(),
        "graph": recording,
        "graph_pool_handle": lambda: (0, 1),
    }.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    generator = torch.Generator()
    replay = cuda.CudaGraphs(generator).record(lambda: None)
    replay()
    assert graph.events == [generator, "begin", "end", "replay"]
