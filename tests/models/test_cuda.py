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
