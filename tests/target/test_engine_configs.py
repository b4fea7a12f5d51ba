"""vLLM itself takes the engine configs that we ship, as far as that shows without their GPUs."""

from pathlib import Path
from typing import Any

import pytest
from ray.serve.llm import LLMConfig
from transformers import AutoConfig
from vllm.config import VllmConfig
from vllm.config import vllm as vllm_config
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers.quantization import DEPRECATED_QUANTIZATION_METHODS
from vllm.platforms import current_platform

from specray.models.known import KNOWN
from specray.models.quantization import REFUSED_METHODS
from specray.serve.config_file import read_file
from specray.serve.settings import plugged_in, source_of, validate
from specray.target.names import PROPOSER_CLS

FILES = sorted((Path(__file__).parents[2] / "deployments").glob("*.yaml"))
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "opt": "OPTForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}


@pytest.fixture(autouse=True)
def _as_with_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton, for which vLLM prefers other model runners, and every quantisation."""
    monkeypatch.setattr(vllm_config, "HAS_TRITON", True)
    monkeypatch.setattr(type(current_platform), "supported_quantization", [])


def targets() -> list[Any]:
    rows = []
    for file in FILES:
        args = validate(read_file(file).applications[0].args)
        rows += [
            pytest.param(args, target, id=f"{file.stem}-{target.model_id}")
            for target in args.targets
        ]
    return rows


def save(folder: Path, shape: dict[str, Any], architecture: str) -> str:
    config = AutoConfig.for_model(**shape)
    config.architectures = [architecture]
    config.save_pretrained(folder)
    return str(folder)


def engine_config(target: LLMConfig, folder: Path, monkeypatch: pytest.MonkeyPatch) -> VllmConfig:
    """What the engine of a target would be given, its models being nothing but their shapes."""
    shape = KNOWN[source_of(target) or ""]
    model = save(folder / "model", shape, ARCHITECTURES[shape["model_type"]])
    kwargs = dict(target.engine_kwargs)
    if kwargs["speculative_config"].get("model", PROPOSER_CLS) != PROPOSER_CLS:
        head = save(folder / "head", shape | {"num_hidden_layers": 1}, "LlamaForCausalLM")
        kwargs["speculative_config"] = kwargs["speculative_config"] | {"model": head}
    for name, value in (target.runtime_env or {}).get("env_vars", {}).items():
        monkeypatch.setenv(name, value)
    args = EngineArgs(model=model, tokenizer=model, skip_tokenizer_init=True, **kwargs)
    return args.create_engine_config()


@pytest.mark.parametrize(("args", "target"), targets())
def test_vllm_takes_it_and_runs_what_we_plug_into(
    args: Any, target: LLMConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = engine_config(plugged_in(args, target), tmp_path, monkeypatch)

    assert not config.use_v2_model_runner
    assert not config.scheduler_config.async_scheduling
    assert config.max_concurrent_batches == 1


def test_the_methods_that_vllm_refuses_are_known() -> None:
    assert list(REFUSED_METHODS) == DEPRECATED_QUANTIZATION_METHODS
