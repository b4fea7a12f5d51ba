import platform
from typing import Any

import llvmlite.binding
import numba
import pytest

from specray import registers

FEATURES = {"avx2": True, "avx512f": False}


@pytest.fixture(autouse=True)
def _processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(llvmlite.binding, "get_host_cpu_features", lambda: FEATURES)
    for name, value in {"CPU_NAME": None, "CPU_FEATURES": None, "ENABLE_AVX": True}.items():
        monkeypatch.setattr(numba.config, name, value)


def test_features_are_those_of_this_processor() -> None:
    assert registers.x86_features() == FEATURES


@pytest.mark.parametrize(
    ("name", "value"), [("CPU_NAME", "nehalem"), ("CPU_FEATURES", "-avx2"), ("ENABLE_AVX", False)]
)
def test_nothing_is_known_of_a_processor_that_numba_is_told_to_compile_for(
    monkeypatch: pytest.MonkeyPatch, name: str, value: Any
) -> None:
    monkeypatch.setattr(numba.config, name, value)

    assert registers.x86_features() == {}


def test_nothing_is_known_where_llvm_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("failed to get host cpu features")

    monkeypatch.setattr(llvmlite.binding, "get_host_cpu_features", fail)

    assert registers.x86_features() == {}


def test_other_processors_have_no_such_features(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")

    assert registers.x86_features() is None
