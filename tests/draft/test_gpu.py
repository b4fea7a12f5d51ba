import logging
import sys
from types import SimpleNamespace

import pytest
import torch

from specray.draft import gpu
from specray.draft.gpu import has_kernels


def test_a_cpu_has_none() -> None:
    assert not has_kernels(torch.device("cpu"))


def test_nor_has_a_gpu_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "find_spec", lambda _: None)
    assert not has_kernels(torch.device("cuda"))


def test_a_compiler_that_is_missing_costs_speed_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("Failed to find C compiler")

    ones = torch.ones(1, 16)
    monkeypatch.setattr(gpu, "find_spec", lambda _: object())
    monkeypatch.setattr(torch, "ones", lambda *_, **__: ones)
    fake = SimpleNamespace(rms_norm=fail)
    monkeypatch.setitem(sys.modules, "specray.draft.triton_kernels", fake)
    monkeypatch.setattr("specray.draft.triton_kernels", fake, raising=False)
    with caplog.at_level(logging.WARNING):
        assert not has_kernels(torch.device("cuda"))
    assert "Failed to find C compiler" in caplog.text
