"""A mixture of experts: what steps take by their tokens, beside what the roofline says.

    python -m loadtest.mixture_steps --json loadtest/results/mixture-steps-COMMIT.json

Runs a random Qwen3-MoE in vLLM on this machine's first allowed core: 8 layers of 32 experts, 2 for
each token, 0.8 GB in float32. As many requests as a step shall have tokens decode together, so that
each token chooses experts of its own. Sizes take turns, a few steps each. Predictions, in
milliseconds as all else, begin from the core's measured bandwidth and FLOP/s: the roofline, that of
a dense model of all its parameters, and what `StepTimeModel` learns on each of them from the
medians of steps of 1 to 8 tokens alone.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

SIZES = (1, 2, 4, 8, 16, 32, 64)
STEPS_PER_TURN = 10
LEARNT_SIZES = (1, 2, 4, 8)
PROMPT_TOKENS = 16
SEED = 1
EXPERTS, PER_TOKEN = 32, 2


def main() -> None:
    parser = argparse.ArgumentParser(description="A mixture's steps, measured and predicted.")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    core = min(os.sched_getaffinity(0))
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": str(core),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
    }
    from specray.cli.bench.report import collect_meta

    meta = collect_meta(  # before the work, during which files may change
        sys.argv[1:], "python -m loadtest.mixture_steps"
    )
    with tempfile.TemporaryDirectory() as folder:
        save_model(folder)
        seconds = measured_steps(folder, args.turns)
        result = compared(folder, seconds)
    for row in result["steps"]:
        print("  ".join(f"{name} {value:6.1f}" for name, value in row.items()), flush=True)
    if args.json:
        args.json.write_text(json.dumps({"meta": meta, **result}, indent=1) + "\n")


def save_model(folder: str) -> None:
    import torch
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(SEED)
    config = Qwen3MoeConfig(
        vocab_size=512,
        hidden_size=512,
        intermediate_size=512,
        moe_intermediate_size=512,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        num_experts=EXPERTS,
        num_experts_per_tok=PER_TOKEN,
        max_position_embeddings=4096,
        dtype="float32",
    )
    Qwen3MoeForCausalLM(config).save_pretrained(folder)


def measured_steps(folder: str, turns: int) -> dict[int, list[float]]:
    """Seconds of steps in which so many requests decode, by their number."""
    from vllm import EngineArgs, LLMEngine

    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=folder,
            skip_tokenizer_init=True,
            dtype="float32",
            enforce_eager=True,
            max_model_len=1024,
            max_num_seqs=max(SIZES),
        )
    )
    seconds: dict[int, list[float]] = {size: [] for size in SIZES}
    for turn in range(turns + 1):
        for size in SIZES:
            steps = decoding_steps(engine, size, seed=turn)
            if turn > 0:  # the first warms things up
                seconds[size] += steps
        print(f"turn {turn} of {turns}", flush=True)
    return seconds


def decoding_steps(engine: Any, size: int, seed: int) -> list[float]:
    """One token of each request a step, by sampling: their texts stay different."""
    import numpy as np
    from vllm import SamplingParams
    from vllm.inputs import TokensPrompt

    prompts = np.random.default_rng(seed).integers(512, size=(size, PROMPT_TOKENS)).tolist()
    params = SamplingParams(max_tokens=STEPS_PER_TURN + 4, ignore_eos=True, detokenize=False)
    for i, prompt in enumerate(prompts):
        engine.add_request(f"{seed}-{size}-{i}", TokensPrompt(prompt_token_ids=prompt), params)
    seconds, num_answered = [], 0
    while engine.has_unfinished_requests():
        start = time.perf_counter()
        outputs = engine.step()
        elapsed = time.perf_counter() - start
        if num_answered == size and len(outputs) == size:  # none of them prefills or waits
            seconds.append(elapsed)
        num_answered = len(outputs)
    return seconds[1:STEPS_PER_TURN]


def compared(folder: str, seconds: dict[int, list[float]]) -> dict[str, Any]:
    """Each size's step: its median, 10th and 90th percentile, and what is predicted."""
    import numpy as np
    import torch

    from specray.control.hardware import HardwareProfile
    from specray.control.model_shape import shape_of
    from specray.control.roofline import Roofline, StepTime
    from specray.control.step_time import StepTimeModel
    from specray.models.size import read_size
    from specray.target.measuring import measure

    size = read_size(folder)
    assert size is not None
    speeds = measure(torch.device("cpu"), torch.float32)
    peak = MappingProxyType({"float32": speeds.peak_flops})
    profile = HardwareProfile("core", speeds.bandwidth, peak, speeds.bandwidth)
    shape = shape_of(size, "float32", "float32")
    dense = replace(
        shape, num_active_parameters=size.num_parameters, expert_bytes=0.0, idle_share=0.0
    )
    learnt, learnt_dense = (StepTimeModel(Roofline(s, profile)) for s in (shape, dense))
    for _ in range(50):
        for n in LEARNT_SIZES:
            for model in (learnt, learnt_dense):
                model.observe(load_of(n), statistics.median(seconds[n]))
    laws: dict[str, StepTime] = {
        "roofline": Roofline(shape, profile),
        "dense roofline": Roofline(dense, profile),
        "learnt": learnt,
        "learnt, dense": learnt_dense,
    }
    rows = []
    for n, measured in seconds.items():
        low, *_, high = statistics.quantiles(measured, n=10)
        times = {"measured": statistics.median(measured), "p10": low, "p90": high}
        times |= {
            name: float(law.predict(load_of(n), np.zeros(1))[0]) for name, law in laws.items()
        }
        rows.append({"tokens": n} | {name: round(1e3 * s, 2) for name, s in times.items()})
    return {"core": {"bandwidth": speeds.bandwidth, "flops": speeds.peak_flops}, "steps": rows}


def load_of(size: int) -> Any:
    from specray.control.roofline import StepLoad

    mean_length = PROMPT_TOKENS + STEPS_PER_TURN // 2
    return StepLoad(size, size, size * mean_length)


if __name__ == "__main__":
    main()
