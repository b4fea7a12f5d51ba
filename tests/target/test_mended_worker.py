import pytest
from vllm.v1.sample import rejection_sampler
from vllm.v1.worker import gpu_model_runner

from specray.target import workarounds
from specray.target.mended_worker import MendedWorker


def test_faults_are_mended_before_the_model_runner_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built_with = []
    monkeypatch.setattr(rejection_sampler, "expand_batch_to_tokens", None)
    monkeypatch.setattr(gpu_model_runner, "build_logitsprocs", None)  # put back afterwards
    monkeypatch.setattr(
        MendedWorker.__base__,
        "init_device",
        lambda _worker: built_with.append(rejection_sampler.expand_batch_to_tokens),
    )

    object.__new__(MendedWorker).init_device()

    assert built_with == [workarounds.expand_batch_to_tokens]
