"""Whether `torch.compile` pays for the layers that `specray distill` trains.

    python -m loadtest.compiled_training --json build/compiled-training.json

A student with the bundled draft's shape and random weights reads batches of three widths, as
answers come in all lengths, forward and backward with the products in bfloat16, as it is and with
each layer compiled for any width, as `distill` does it, in turn. What compiling itself takes is
told apart; the rest of a training step, the head's logits and the loss, is the same for both and
left out.
"""

import argparse
import json
import statistics
import sys
import time
from itertools import product
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaModel

from specray.cli.bench.report import collect_meta

WIDTHS = (224, 320, 416)  # tokens, prompt and answer
ROWS = 8


def make_student(device: str, layers: int) -> LlamaModel:
    """Of SmolLM2-135M's shape, with fewer layers."""
    config = LlamaConfig(
        vocab_size=1024,  # embeddings do not learn
        hidden_size=576,
        intermediate_size=1536,
        num_attention_heads=9,
        num_key_value_heads=3,
        num_hidden_layers=layers,
    )
    student = LlamaModel(config).to(device).train()
    student.embed_tokens.weight.requires_grad_(False)
    return student


def step_s(student: LlamaModel, inputs: Tensor) -> float:
    """Seconds of one pass forward and backward over [rows, width, hidden]."""
    student.zero_grad()
    started_s = time.perf_counter()
    with torch.autocast(inputs.device.type, torch.bfloat16):
        states = student(inputs_embeds=inputs, use_cache=False).last_hidden_state
    states.float().square().mean().backward()
    if inputs.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - started_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--layers", type=int, default=8, help="as the bundled draft")
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--json", type=Path, help="where to put the result")
    args = parser.parse_args()
    students = {name: make_student(args.device, args.layers) for name in ("eager", "compiled")}
    for layer in students["compiled"].layers:
        layer.compile(dynamic=True)
    batches = [torch.randn(ROWS, width, 576, device=args.device) for width in WIDTHS]
    first_s = {
        name: sum(step_s(student, batch) for batch in batches) for name, student in students.items()
    }
    steps_s: dict[str, list[float]] = {name: [] for name in students}
    for _, batch, name in product(range(args.repeats), batches, students):
        steps_s[name].append(step_s(students[name], batch))
    medians_ms = {name: 1e3 * statistics.median(each) for name, each in steps_s.items()}
    result = {
        "meta": collect_meta(sys.argv[1:], "python -m loadtest.compiled_training"),
        "first_steps_s": first_s,  # of each width once, with what compiling takes
        "median_ms": medians_ms,
        "compiled_to_eager": medians_ms["compiled"] / medians_ms["eager"],
    }
    print(json.dumps(result, indent=1))
    if args.json:
        args.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
