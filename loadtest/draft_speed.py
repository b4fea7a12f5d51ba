"""What drafting costs on this machine: prompt lookup, and a small model on one thread.

    python loadtest/draft_speed.py

The model has SmolLM2-135M's shape with three layers and random weights: speed depends on shapes
only. Its floor is bytes over bandwidth: each pass reads all weights and the cached keys and values
once, at the bandwidth this thread reaches when it sums an array.
"""

import json
import random
import statistics
import time
from collections.abc import Callable

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specray.config import ModelDraftConfig, PromptLookupConfig
from specray.draft.causal_lm import CausalLm
from specray.draft.model import ModelProposer
from specray.draft.prompt_lookup import PromptLookup
from specray.draft.proposer import Proposer
from specray.types import Commit, OpenSession, SamplingSettings

VOCAB_SIZE = 49152
DEPTH = 5
CONTEXT = 300
REPEATS = 15


def median_s(action: Callable[[], object], repeats: int = REPEATS) -> float:
    durations = []
    for _ in range(repeats):
        started_s = time.perf_counter()
        action()
        durations.append(time.perf_counter() - started_s)
    return statistics.median(durations)


def smollm2_shaped(num_layers: int) -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB_SIZE,
            hidden_size=576,
            intermediate_size=1536,
            num_hidden_layers=num_layers,
            num_attention_heads=9,
            num_key_value_heads=3,
            max_position_embeddings=8192,
            tie_word_embeddings=True,
            attn_implementation="sdpa",
        )
    )


def text(length: int, num_distinct: int = VOCAB_SIZE) -> tuple[int, ...]:
    return tuple(random.randrange(num_distinct) for _ in range(length))


def open_all(proposer: Proposer, batch: int, length: int, sampling: SamplingSettings) -> None:
    for session_id in range(batch):
        proposer.open(OpenSession(session_id, text(length), length, sampling, DEPTH))
        proposer.commit(Commit(session_id, length, (1,), DEPTH, 0))


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


def bandwidth() -> float:
    """Bytes per second of one thread that reads."""
    data = torch.ones(64 * 2**20)
    return data.nbytes / median_s(data.sum)


def model_figures(model: CausalLm, num_bytes: int, batch: int, settings: SamplingSettings) -> dict:
    config = ModelDraftConfig(model="random", max_tokens=16384)
    proposer = ModelProposer(model, config, torch.Generator().manual_seed(0))
    open_all(proposer, batch, CONTEXT, settings)
    session_ids = range(batch)
    pass_ms = 1e3 * median_s(lambda: proposer.propose(session_ids)) / DEPTH
    kv_bytes = batch * CONTEXT * 2 * 4 * model.layout.num_layers * 3 * 64
    return {
        "batch": batch,
        "temperature": settings.temperature,
        "pass_ms": pass_ms,
        "per_token_ms": pass_ms / batch,
        "floor_ms": 1e3 * (num_bytes + kv_bytes) / bandwidth(),
    }


def main() -> None:
    torch.set_num_threads(1)
    random.seed(0)
    figures: dict[str, object] = {"prompt_lookup": lookup_figures()}
    model = smollm2_shaped(num_layers=3)
    num_bytes = sum(p.nbytes for p in model.parameters())
    draft = CausalLm(model)
    for batch in (1, 8):
        for settings in (SamplingSettings(), SamplingSettings(1.0, top_p=0.95)):
            name = f"model_batch_{batch}_temperature_{settings.temperature}"
            figures[name] = model_figures(draft, num_bytes, batch, settings)
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
