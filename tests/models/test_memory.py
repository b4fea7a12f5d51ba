import numpy as np
import psutil
import pytest
import torch

from specray.models.memory import free_bytes, is_shortage

MORE_THAN_THERE_IS = 1 << 60  # bytes


def test_a_cpu_has_some_memory_left() -> None:
    assert 0 < free_bytes(torch.device("cpu")) < psutil.virtual_memory().total


def test_torchs_shortage_on_a_cpu_is_one() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(MORE_THAN_THERE_IS, dtype=torch.uint8)

    assert is_shortage(caught.value)


def test_numpys_shortage_is_one() -> None:
    with pytest.raises(MemoryError) as caught:
        np.empty(MORE_THAN_THERE_IS, np.uint8)

    assert is_shortage(caught.value)


def test_a_gpus_shortage_is_one() -> None:
    assert is_shortage(torch.OutOfMemoryError("CUDA out of memory"))


def test_other_errors_are_none() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.zeros(2, 3) @ torch.zeros(2, 3)

    assert not is_shortage(caught.value)
    assert not is_shortage(ValueError("Cannot allocate memory"))
