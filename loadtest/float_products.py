"""What multiplying a step's tokens takes: vLLM's own products beside specray's.

    python -m loadtest.float_products --json loadtest/results/float-products-COMMIT.json

All products of a step of SmolLM2-135M, random weights of its shapes, of the type that specray
multiplies on this processor, on this machine's last allowed core, in turn; medians in milliseconds.
The floor is what the weights take to be read once, at the rate at which the same core sums up an
array of their size.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TOKENS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 32, 64, 128, 256, 512)
LAYERS, SHAPES, HEAD = 30, ((960, 576), (576, 576), (3072, 576), (576, 1536)), (49152, 576)


def main() -> None:
    parser = argparse.ArgumentParser(description="A step's products, vLLM's and specray's.")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    os.environ["VLLM_LOGGING_LEVEL"] = "WARNING"
    import torch

    from specray.cli.bench.report import collect_meta

    torch.set_num_threads(1)
    meta = collect_meta(sys.argv[1:], "python -m loadtest.float_products")
    systems, weights = make_systems()
    dtype = str(weights[0].dtype).removeprefix("torch.")
    rows = []
    for tokens in TOKENS:
        row = {"tokens": float(tokens)} | measured(systems, weights, tokens, args.rounds)
        rows.append({name: round(value, 2) for name, value in row.items()})
        print("  ".join(f"{name} {value:6.1f}" for name, value in rows[-1].items()), flush=True)
    if args.json:
        args.json.write_text(
            json.dumps({"meta": meta, "dtype": dtype, "steps": rows}, indent=1) + "\n"
        )


def make_systems() -> tuple[dict[str, list[Callable[[Any], Any]]], list[Any]]:
    """What multiplies each of a step's weights, by system; and the weights."""
    import torch
    import vllm.model_executor.layers.utils as vllm_products
    from vllm.platforms import current_platform

    from specray.target import float_products

    current_platform.import_kernels()
    kind = float_products.kind_for_this_processor()
    if kind is None:
        raise SystemExit("specray leaves this processor's products to vLLM")
    generator = torch.Generator().manual_seed(0)
    shapes = [*(shape for _ in range(LAYERS) for shape in SHAPES), HEAD]
    weights = [torch.randn(*shape, generator=generator).to(kind.dtype) for shape in shapes]

    def layers() -> list[Callable[[Any], Any]]:
        made = []
        for weight in weights:
            layer = torch.nn.Module()
            layer.weight = torch.nn.Parameter(weight, requires_grad=False)
            vllm_products.dispatch_cpu_unquantized_gemm(layer, remove_weight=False)
            made.append(lambda x, layer=layer: layer.cpu_linear(x, layer.weight, None))
        return made

    theirs = layers()
    float_products.install()
    return {"vllm": theirs, "specray": layers()}, weights


def measured(
    systems: dict[str, list[Callable[[Any], Any]]], weights: list[Any], tokens: int, rounds: int
) -> dict[str, float]:
    """Medians over the rounds: of a step's products by system, and of its floor."""
    import torch

    dtype = weights[0].dtype
    inputs = {w.shape[1]: torch.randn(tokens, w.shape[1]).to(dtype) for w in weights}
    array = torch.ones(sum(w.nbytes for w in weights) // torch.float32.itemsize)
    seconds: dict[str, list[float]] = {name: [] for name in (*systems, "floor")}
    with torch.inference_mode():
        for _ in range(rounds + 1):
            for name, layers in systems.items():
                start = time.perf_counter()
                for layer, weight in zip(layers, weights, strict=True):
                    layer(inputs[weight.shape[1]])
                seconds[name].append(time.perf_counter() - start)
            start = time.perf_counter()
            array.sum()
            seconds["floor"].append(time.perf_counter() - start)
    return {name: 1e3 * statistics.median(some[1:]) for name, some in seconds.items()}


if __name__ == "__main__":
    main()
