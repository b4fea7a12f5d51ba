"""What a pass over branches of one session takes: reading what they share in place, or copying it.

    python -m loadtest.branch_pass --json build/branch-pass.json

One session of the bundled draft, and branches of it that are two tokens long each, as what is
drafted ahead. `in place` reads the session's keys and values where they lie (`InPlaceCache`),
`copied` puts each branch's into one tensor first (`BatchCache`), as drafts of other kinds need it.
Both compute the same logits, which is checked. In place, all layers of int8 weights are one call of
compiled code besides, which tells for few branches. The two take turns; medians.
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

import torch
from torch import Tensor

from loadtest.draft_speed import target_beside
from specray.cli.bench.report import collect_meta
from specray.config import ModelDraftConfig
from specray.draft.attention import CachedRow, NewTokens
from specray.draft.batch_cache import BatchCache
from specray.draft.in_place_cache import InPlaceCache
from specray.draft.language_model import LanguageModel
from specray.draft.loading import load_language_model
from specray.models.sources import resolve

CACHES = {"in place": InPlaceCache, "copied": BatchCache}
TAIL_TOKENS, NUM_OWN = 4, 2
REPEATS = 30
_SAME = 0.1  # of logits, on average: what int8 rounds to the other side moves them by up to 0.06


def make_rows(model: LanguageModel, num_branches: int, context: int) -> list[CachedRow]:
    """Branches of a session whose keys and values are random numbers."""
    layers, kv_heads, dim = model.layout
    generator = torch.Generator().manual_seed(0)

    def states(num_tokens: int) -> Tensor:
        return torch.randn(layers, 2 * kv_heads, num_tokens, dim, generator=generator)

    shared, num_cached = states(context), context + NUM_OWN
    return [
        CachedRow(shared, num_cached, num_cached + 1, states(TAIL_TOKENS), context)
        for _ in range(num_branches)
    ]


def compute(model: LanguageModel, rows: list[CachedRow], kind: str) -> Tensor:
    """The logits of each branch's next token."""
    num, position = len(rows), rows[0].num_cached
    new = NewTokens(
        torch.arange(num) + 1000,
        torch.full((num,), position),
        [1] * num,
        [position + 1] * num,
    )
    cache = CACHES[kind](rows)
    logits = model.next_logits(new, cache)
    cache.store()
    return logits


def is_blind(model: LanguageModel, rows: list[CachedRow], logits: Tensor) -> bool:
    """Whether logits hardly depend on what the branches have to themselves."""
    others = [row._replace(tail=-row.tail) for row in rows if row.tail is not None]
    return bool((compute(model, others, "copied") - logits).abs().mean() < 4 * _SAME)


def measure(model: LanguageModel, num_branches: int, context: int) -> dict[str, float]:
    rows = make_rows(model, num_branches, context)
    first, second = (compute(model, rows, kind) for kind in CACHES)
    if (first - second).abs().mean() > _SAME or is_blind(model, rows, first):
        raise SystemExit("the two don't compute the same, or the check can't tell")
    seconds: dict[str, list[float]] = {kind: [] for kind in CACHES}
    for _ in range(REPEATS):
        for kind, durations in seconds.items():
            started_s = time.perf_counter()
            compute(model, rows, kind)
            durations.append(time.perf_counter() - started_s)
    return {f"{kind}, ms": 1e3 * statistics.median(found) for kind, found in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draft", default="bundled:smollm2-135m-instruct-draft")
    parser.add_argument("--context", type=int, nargs="+", default=[300, 1000])
    parser.add_argument("--branches", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--core", type=int, default=0, help="the draft's")
    parser.add_argument("--beside-target", type=int, nargs="?", const=1, help="the target's core")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    os.sched_setaffinity(0, {args.core})
    torch.set_num_threads(1)
    model = load_language_model(resolve(args.draft), ModelDraftConfig(model=args.draft))
    meta = collect_meta(sys.argv[1:], "python -m loadtest.branch_pass")
    rows = []
    with target_beside(args.beside_target):
        for context in args.context:
            for num in args.branches:
                row = {"context": context, "branches": num} | measure(model, num, context)
                print({k: round(v, 2) for k, v in row.items()}, flush=True)
                rows.append(row)
    if args.json:
        args.json.write_text(json.dumps({"meta": meta, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
