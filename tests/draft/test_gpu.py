import logging
import sys
from types import SimpleNamespace

import pytest
import torch

from specray.draft import gpu
from specray.draft.gpu import has_kernels

HEADS = (torch.bfloat16, 32, 8, 64)


class TritonError(Exception):
    """As Triton's own, which are of no kind that Python has."""


def test_a_cpu_has_none(caplog: pytest.LogCaptureFixture) -> None:
    assert not has_kernels(torch.device("cpu"), *HEADS)
    assert not caplog.text


def test_nor_has_a_gpu_without_triton(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(gpu, "find_spec", lambda _: None)
    assert not has_kernels(torch.device("cuda"), *HEADS)
    assert "without its kernels and CUDA graphs: there is no Triton" in caplog.text


@pytest.mark.parametrize(
    "error", [RuntimeError("Failed to find C compiler"), TritonError("out of resource")]
)
def test_what_can_not_be_compiled_costs_speed_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def fail(*given: object) -> None:
        assert given == (torch.device("cuda"), *HEADS)
        raise error

    monkeypatch.setattr(gpu, "find_spec", lambda _: object())
    fake = SimpleNamespace(prepare=fail)
    monkeypatch.setitem(sys.modules, "specray.draft.triton_kernels", fake)
    monkeypatch.setattr("specray.draft.triton_kernels", fake, raising=False)
    with caplog.at_level(logging.WARNING):
        assert not has_kernels(torch.device("cuda"), *HEADS)
    assert str(error) in caplog.text
