"""How far look-ups get on a target's own answers, and what they cost.

    python loadtest/lookup_acceptance.py --answers build/answers.json

The first run lets the bundled target answer the benchmark's prompts (greedy, at temperature 0.7
with top-p 0.9, and at temperature 1; minutes) and keeps the token ids in the file. Then each
answer is replayed: a draft proposes, what agrees with the answer is accepted, one token more is
committed. For point masses that is exact at every temperature. The time is that of a proposal, for
ours with all that is drafted ahead behind it. `shared` looks up all earlier
answers of the run too, never one to the same prompt. vLLM's own ngram draft, and
arctic-inference's suffix decoding if it is installed, go the same way.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from specray.cli.bench.report import collect_meta
from specray.cli.bench.workloads import WORKLOADS, load_prompts
from specray.config import PromptLookupConfig
from specray.draft.prompt_lookup import PromptLookup
from specray.models.sources import resolve
from specray.types import Commit, OpenSession, SamplingSettings

MODEL = "bundled:smollm2-135m-instruct"
DEPTH = 5
MAX_TOKENS = 224
BATCH = 17
SETTINGS = {
    "greedy": SamplingSettings(),
    "T=0.7": SamplingSettings(0.7, top_p=0.9),
    "T=1": SamplingSettings(1.0),
}


class Answer(NamedTuple):
    kind: str
    setting: str
    prompt: list[int]
    answer: list[int]


class Draft(Protocol):
    """One request after the other; times itself."""

    durations_s: list[float]

    def begin(self, answer: Answer) -> None: ...

    def extend(self, token_ids: list[int]) -> None: ...

    def propose(self) -> Sequence[int]: ...


class Ours:
    def __init__(self, **options: int) -> None:
        self._lookup = PromptLookup(PromptLookupConfig(**options))
        self._length = 0
        self.durations_s: list[float] = []

    def begin(self, answer: Answer) -> None:
        """The answer before is closed, and shared if that is on."""
        self._length = len(answer.prompt)
        sampling = SETTINGS[answer.setting]
        self._lookup.open(OpenSession(1, tuple(answer.prompt), self._length, sampling, DEPTH))

    def extend(self, token_ids: list[int]) -> None:
        self._lookup.commit(Commit(1, self._length, tuple(token_ids), DEPTH, 0))
        self._length += len(token_ids)

    def propose(self) -> Sequence[int]:
        started_s = time.perf_counter()
        proposals = self._lookup.propose([1])
        self.durations_s.append(time.perf_counter() - started_s)
        return proposals[0].token_ids


class Vllm:
    """vLLM's ngram draft, called as its proposer calls it."""

    def __init__(self, min_ngram: int, max_ngram: int) -> None:
        from vllm.v1.spec_decode import ngram_proposer

        self._find = ngram_proposer._find_longest_matched_ngram_and_propose_tokens
        self._range = min_ngram, max_ngram
        self._text = np.array([1, 2, 1, 2], np.int32)
        self.durations_s: list[float] = []
        self.propose()  # compiles
        self.durations_s.clear()

    def begin(self, answer: Answer) -> None:
        self._text = np.array(answer.prompt, np.int32)

    def extend(self, token_ids: list[int]) -> None:
        self._text = np.append(self._text, np.array(token_ids, np.int32))

    def propose(self) -> Sequence[int]:
        started_s = time.perf_counter()
        found = self._find(self._text, *self._range, 1 << 20, DEPTH)
        self.durations_s.append(time.perf_counter() - started_s)
        return found.tolist()


class Arctic:
    """arctic-inference's suffix decoding as vLLM's `suffix` method sets it up."""

    def __init__(self, num_cached: int) -> None:
        from arctic_inference.suffix_decoding import SuffixDecodingCache

        self._cache = SuffixDecodingCache(max_tree_depth=24, max_cached_requests=num_cached)
        self._id = 0
        self._text: list[int] = []
        self.durations_s: list[float] = []

    def begin(self, answer: Answer) -> None:
        if self._id:
            self._cache.stop_request(self._id)
        self._id += 1
        self._text = list(answer.prompt)
        self._cache.start_request(self._id, self._text)

    def extend(self, token_ids: list[int]) -> None:
        self._text += token_ids
        self._cache.add_active_response(self._id, token_ids)

    def propose(self) -> Sequence[int]:
        started_s = time.perf_counter()
        draft = self._cache.speculate(self._id, self._text[-24:], DEPTH)
        self.durations_s.append(time.perf_counter() - started_s)
        return draft.token_ids


DRAFTS: dict[str, Callable[[], Draft]] = {
    "prompt lookup, from 2 tokens on": lambda: Ours(),
    "prompt lookup, from 1 token on": lambda: Ours(min_ngram=1),
    "from 2, shared": lambda: Ours(shared_tokens=65536),
    "from 1, shared": lambda: Ours(min_ngram=1, shared_tokens=65536),
    "vLLM ngram, from 2": lambda: Vllm(2, 8),
    "vLLM ngram, from 1": lambda: Vllm(1, 8),
    "arctic suffix": lambda: Arctic(0),
    "arctic suffix, shared": lambda: Arctic(10_000),
}


def replay(draft: Draft, answer: Answer) -> int:
    """Steps that the answer takes; the prefill adds its first token."""
    draft.begin(answer)
    draft.extend(answer.answer[:1])
    length, num_steps = 1, 0
    while length < len(answer.answer):
        proposal, rest = draft.propose(), answer.answer[length:]
        pairs = enumerate(zip(proposal, rest, strict=False))
        num_agreed = next((i for i, (a, b) in pairs if a != b), min(len(proposal), len(rest)))
        draft.extend(rest[: num_agreed + 1])
        length += num_agreed + 1
        num_steps += 1
    return num_steps


def figures(draft: Draft, answers: Iterable[Answer]) -> dict[str, float]:
    tokens = dict.fromkeys((*WORKLOADS, "all"), 0)
    steps = dict(tokens)
    for answer in answers:
        num_steps = replay(draft, answer)
        for kind in (answer.kind, "all"):
            tokens[kind] += len(answer.answer) - 1
            steps[kind] += num_steps
    per_step = {kind: round(tokens[kind] / max(1, steps[kind]), 3) for kind in tokens}
    return {**per_step, "median_us": round(1e6 * median(draft.durations_s), 1)}


@torch.inference_mode()
def write_answers(path: Path) -> None:
    model_path = resolve(MODEL)
    tokenizer = AutoTokenizer.from_pretrained(model_path, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32).eval()
    prompts = [(kind, prompt) for kind in WORKLOADS for prompt in load_prompts(kind)]
    prompts.sort(key=lambda prompt: len(prompt[1]))  # less padding
    answers = []
    for setting in SETTINGS:
        torch.manual_seed(0)
        for start in range(0, len(prompts), BATCH):
            answers += answer_batch(model, tokenizer, setting, prompts[start : start + BATCH])
            print(f"{setting}: {len(answers)} answers", flush=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(answers))


def answer_batch(
    model: Any, tokenizer: Any, setting: str, prompts: list[tuple[str, str]]
) -> list[Answer]:
    chats = [[{"role": "user", "content": prompt}] for _, prompt in prompts]
    texts = tokenizer.apply_chat_template(chats, tokenize=False, add_generation_prompt=True)
    inputs = tokenizer(texts, add_special_tokens=False, padding=True, return_tensors="pt")
    sampling, eos_id = SETTINGS[setting], tokenizer.eos_token_id
    options: dict[str, Any] = {"do_sample": False}
    if not sampling.is_greedy:
        options = {"do_sample": True, "temperature": sampling.temperature, "top_k": 0}
        options["top_p"] = sampling.top_p
    written = model.generate(
        **inputs, max_new_tokens=MAX_TOKENS, pad_token_id=tokenizer.pad_token_id, **options
    )
    answers = []
    for (kind, _), row, mask in zip(prompts, written, inputs["attention_mask"], strict=True):
        prompt = row[: len(mask)][mask.bool()].tolist()
        answer = row[len(mask) :].tolist()
        if eos_id in answer:
            answer = answer[: answer.index(eos_id) + 1]
        answers.append(Answer(kind, setting, prompt, answer))
    return answers


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--answers", type=Path, required=True, help="made if it is not there")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if not args.answers.exists():
        write_answers(args.answers)
    answers = [Answer(*row) for row in json.loads(args.answers.read_text())]
    rows = []
    for setting in SETTINGS:
        chosen = [answer for answer in answers if answer.setting == setting]
        for name, make in DRAFTS.items():
            try:
                draft = make()
            except ImportError:
                continue
            rows.append({"setting": setting, "draft": name, **figures(draft, chosen)})
            print(json.dumps(rows[-1]), flush=True)
    if args.json is not None:
        meta = collect_meta(sys.argv, "python")
        args.json.write_text(json.dumps({"meta": meta, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
