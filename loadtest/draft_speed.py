"""What drafting costs here: prompt lookup, n-grams, and a small model on one thread or a GPU.

    python -m loadtest.draft_speed --beside-target
    python -m loadtest.draft_speed --device cuda --shape llama-1b --layers 16 --batch 1 4 16 64

The model has a known one's shape, by default SmolLM2-135M's with fewer layers, a trimmed head and
random weights: speed depends on shapes only. Each proposal follows a commit that accepted all or
half of the one before. Its floor is bytes over bandwidth: each pass reads all weights, and every
session's keys and values, once, at the rate at which this thread, or the GPU, sums an array.
`--beside-target` gives another core what a target does: it reads 540 MB of weights every 50 ms. The
two share the machine's bandwidth. On a GPU it compares passes with and without CUDA graphs.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specray.cli.bench.report import collect_meta
from specray.config import DraftConfig, ModelDraftConfig, NgramDraftConfig, PromptLookupConfig
from specray.draft.factory import make_proposer
from specray.draft.language_model import LanguageModel
from specray.draft.loading import load_language_model
from specray.draft.model import ModelProposer
from specray.draft.prompt_lookup import PromptLookup
from specray.draft.service import DraftService
from specray.draft.trimmed_head import DRAFT_FILE
from specray.types import Commit, OpenSession, Proposal, SamplingSettings

VOCAB_SIZE = 49152
NGRAMS = "bundled:smollm2-135m-instruct-draft"
SHAPES = {
    "smollm2": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
    },
    "llama-1b": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
}
DEPTH = 4
REPEATS = 24
GPU_WARM_UP = 24  # turns, of each batch: those in which passes are recorded are not counted
SETTINGS = (SamplingSettings(), SamplingSettings(1.0, top_p=0.95))
TARGET = """
import os, time, torch
os.sched_setaffinity(0, {{{core}}})
torch.set_num_threads(1)
weights, x = torch.ones(33, 2048, 2000), torch.ones(2000)
print("ready", flush=True)
parent = os.getppid()
while os.getppid() == parent:  # also when the parent is killed
    started_s = time.perf_counter()
    for weight in weights:
        weight @ x
    time.sleep(max(0.0, started_s + 0.05 - time.perf_counter()))
"""


def median_s(action: Callable[[], object], repeats: int = REPEATS) -> float:
    durations = []
    for _ in range(repeats):
        started_s = time.perf_counter()
        action()
        durations.append(time.perf_counter() - started_s)
    return statistics.median(durations)


def text(length: int, num_distinct: int = VOCAB_SIZE) -> tuple[int, ...]:
    return tuple(random.randrange(num_distinct) for _ in range(length))


def lookup_figures() -> dict[str, float]:
    proposer = PromptLookup(PromptLookupConfig())
    prompt = text(8192, num_distinct=500)
    opened = OpenSession(0, prompt, len(prompt), SamplingSettings(), DEPTH)
    index_s = median_s(lambda: proposer.open(opened), 5)
    length = len(prompt)
    commit_s, propose_s = [], []
    for _ in range(500):
        tail = text(1, num_distinct=500)
        commit_s.append(
            median_s(lambda ids=tail, at=length: proposer.commit(Commit(0, at, ids, DEPTH, 0)), 1)
        )
        length += 1
        propose_s.append(median_s(lambda: proposer.propose([0]), 1))
    return {
        "index_8192_tokens_ms": 1e3 * index_s,
        "commit_of_one_token_us": 1e6 * statistics.median(commit_s),
        "proposal_us": 1e6 * statistics.median(propose_s),
    }


def ngram_figures() -> dict[str, float]:
    """Of the bundled draft's n-grams, on the text that they write themselves."""
    config = DraftConfig(method="ngram", ngram=NgramDraftConfig(model=NGRAMS, fan_out=0))
    figures = {}
    for sampling in SETTINGS:
        proposer = make_proposer(config)
        prompt = text(64, num_distinct=500)
        proposer.open(OpenSession(0, prompt, len(prompt), sampling, DEPTH))
        length, added = len(prompt), prompt[-1]
        propose_s = []
        for _ in range(500):
            proposer.commit(Commit(0, length, (added,), DEPTH, 0))
            length += 1
            started_s = time.perf_counter()
            proposals = proposer.propose([0])
            propose_s.append(time.perf_counter() - started_s)
            guessed = proposals[0].token_ids
            added = guessed[0] if guessed else text(1, num_distinct=500)[0]
        figures[f"proposal_us_at_{sampling.temperature:g}"] = 1e6 * statistics.median(propose_s)
    return figures


def save_model(folder: str, args: argparse.Namespace) -> None:
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        num_hidden_layers=args.layers,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        **SHAPES[args.shape],
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    head = random.sample(range(VOCAB_SIZE), args.head_tokens)
    (Path(folder) / DRAFT_FILE).write_text(json.dumps({"head_token_ids": head}))


def num_weights(args: argparse.Namespace) -> int:
    """Those that every pass reads."""
    width, inner, heads, kv_heads = SHAPES[args.shape].values()
    layer = width * 2 * (heads + kv_heads) * (width // heads) + 3 * width * inner
    return args.layers * layer + args.head_tokens * width


def num_kv_values(args: argparse.Namespace) -> int:
    """Of a token's keys and values."""
    width, _, heads, kv_heads = SHAPES[args.shape].values()
    return args.layers * 2 * kv_heads * (width // heads)


def bandwidth(device: str) -> float:
    """Bytes per second of one thread, or a GPU, that reads."""
    data = torch.ones(2**30 if device == "cuda" else 2**25, device=device)
    return data.nbytes / median_s(lambda: data.sum().item())


class Requests:
    """Sessions that are drafted for, verified and committed to, turn by turn."""

    def __init__(self, proposer: ModelProposer, batch: int, context: int) -> None:
        self._proposer = proposer
        self._lengths = [context] * batch
        self._num_turns = 0

    def open_s(self, sampling: SamplingSettings) -> float:
        """Seconds of prefill."""
        started_s = time.perf_counter()
        for session_id, length in enumerate(self._lengths):
            self._proposer.open(OpenSession(session_id, text(length), length, sampling, DEPTH))
            while self._proposer.work():
                pass
            self._commit(session_id, (1,))
        return time.perf_counter() - started_s

    def turn_s(self) -> float:
        """Seconds until all have their proposals."""
        started_s = time.perf_counter()
        proposals = self._proposer.propose(range(len(self._lengths)))
        duration_s = time.perf_counter() - started_s
        self._verify(proposals)
        return duration_s

    def mean_tokens(self, context: int) -> float:
        """Of all sessions together, between then and now."""
        return (sum(self._lengths) + len(self._lengths) * context) / 2

    def _verify(self, proposals: Sequence[Proposal]) -> None:
        self._num_turns += 1
        for proposal in proposals:
            is_whole = (proposal.session_id + self._num_turns) % 2
            accepted = proposal.token_ids[: DEPTH if is_whole else DEPTH // 2]
            self._commit(proposal.session_id, (*accepted, 1))

    def _commit(self, session_id: int, token_ids: tuple[int, ...]) -> None:
        position = self._lengths[session_id]
        self._proposer.commit(Commit(session_id, position, token_ids, DEPTH, 0))
        self._lengths[session_id] += len(token_ids)


def new_proposer(model: LanguageModel, config: ModelDraftConfig) -> ModelProposer:
    return ModelProposer(model, config, torch.Generator(model.device).manual_seed(0))


def model_figures(
    folder: str, quantization: str, args: argparse.Namespace, *, is_graphed: bool
) -> Iterator[dict]:
    config = ModelDraftConfig(
        model="random", device=args.device, quantization=quantization, cuda_graphs=is_graphed
    )
    kind = {"quantization": quantization, "cuda_graphs": is_graphed}
    started_s = time.perf_counter()
    model = load_language_model(folder, config)
    loaded_s = time.perf_counter()
    DraftService(new_proposer(model, config)).warm_up()
    warm_s = time.perf_counter()
    value_bytes = model.dtype.itemsize
    yield kind | {
        "load_s": loaded_s - started_s,
        "warm_up_s": warm_s - loaded_s,
    }
    bytes_per_s = bandwidth(args.device)
    for batch in args.batch:
        for sampling in SETTINGS:
            requests = Requests(new_proposer(model, config), batch, args.context)
            open_s = requests.open_s(sampling)
            for _ in range(GPU_WARM_UP if args.device == "cuda" else 0):
                requests.turn_s()
            turns_s = sorted(requests.turn_s() for _ in range(args.repeats))
            kv_bytes = requests.mean_tokens(args.context) * num_kv_values(args) * value_bytes
            weight_bytes = num_weights(args) * (1 if quantization == "int8" else value_bytes)
            floor_ms = 1e3 * DEPTH * (weight_bytes + kv_bytes) / bytes_per_s
            proposal_ms = 1e3 * statistics.median(turns_s)
            yield kind | {
                "batch": batch,
                "temperature": sampling.temperature,
                "proposal_ms": proposal_ms,
                "proposal_p90_ms": 1e3 * turns_s[int(0.9 * len(turns_s))],
                "floor_ms": floor_ms,
                "gb_per_s": 1e-9 * bytes_per_s,
                "times_floor": proposal_ms / floor_ms,
                "prefill_ms_per_1000_tokens": 1e6 * open_s / (batch * args.context),
            }


@contextmanager
def target_beside(core: int | None) -> Iterator[None]:
    if core is None:
        yield
        return
    command = [sys.executable, "-c", TARGET.format(core=core)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as target:
        target.stdout.readline()
        try:
            yield
        finally:
            target.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--shape", choices=SHAPES, default="smollm2")
    parser.add_argument("--layers", type=int, default=8, help="as the bundled draft")
    parser.add_argument("--head-tokens", type=int, default=16384)
    parser.add_argument("--context", type=int, default=300)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--quantization", nargs="+", default=["none", "int8"], help="on a CPU")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--core", type=int, default=0, help="the draft's")
    parser.add_argument("--beside-target", type=int, nargs="?", const=1, help="the target's core")
    parser.add_argument("--json", type=Path, help="where to put the result")
    args = parser.parse_args()
    meta = collect_meta(sys.argv[1:], "python -m loadtest.draft_speed")
    kinds = [("none", False), ("none", True)]
    if args.device == "cpu":
        os.sched_setaffinity(0, {args.core})
        torch.set_num_threads(1)
        kinds = [(quantization, False) for quantization in args.quantization]
    random.seed(0)
    rows: list[dict] = [{"prompt_lookup": lookup_figures(), "ngrams": ngram_figures()}]
    print(rows[0], flush=True)
    with tempfile.TemporaryDirectory() as folder, target_beside(args.beside_target):
        save_model(folder, args)
        for quantization, is_graphed in kinds:
            for figures in model_figures(folder, quantization, args, is_graphed=is_graphed):
                print({name: round_figure(value) for name, value in figures.items()}, flush=True)
                rows.append(figures)
    if args.json:
        args.json.write_text(json.dumps({"meta": meta, "rows": rows}, indent=1))


def round_figure(value: object) -> object:
    return round(value, 2) if isinstance(value, float) else value


if __name__ == "__main__":
    main()
