"""How often a draft's outcomes hold the commit that comes, over the fan-out: without a clock.

    python -m loadtest.outcome_hits --answers build/answers.json --json build/outcome-hits.json

The target's greedy answers to the benchmark's prompts are those of `loadtest.lookup_acceptance`; if
the file is not there, it is made first (minutes). They are replayed greedily (its own tokens) or at
temperature 1 (its distributions, speculative sampling by `specray.sampling.reference`). After each
proposal the draft drafts ahead for as long as its budget allows; then the verification's commit is
looked up. The ceiling counts every commit whose added token is among the draft's `support`
likeliest at its place, as it would be with an endless budget. `geometric` spends the same budget as
Saguaro does (arXiv 2603.03251): the f likeliest added tokens at each place, f falling by a constant
ratio with the number accepted.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel

from loadtest.lookup_acceptance import MODEL, Answer, write_answers
from specray.cli.bench.report import collect_meta
from specray.cli.bench.workloads import WORKLOADS
from specray.config import ModelDraftConfig
from specray.draft.language_model import LanguageModel
from specray.draft.loading import load_language_model
from specray.draft.model import ModelProposer
from specray.draft.outcomes import InFlight, OutcomeModel
from specray.models.sources import resolve
from specray.sampling.reference import verify
from specray.types import Commit, OpenSession, Proposal, SamplingSettings

SUPPORT = 32
NUM_BRANCHES = (1, 4, 8, 16)  # a pass on a CPU takes no more
GREEDY = SamplingSettings()
SAMPLED = SamplingSettings(1.0)


def stopped_clock() -> float:
    """No pass is ever too late."""
    return 0.0


class Step(NamedTuple):
    """A verification: what was in flight, and what it added."""

    flight: InFlight
    committed: tuple[int, ...]
    ahead: frozenset[tuple[int, int]]  # outcomes drafted for: accepted tokens, added token


class Target:
    """The target's distributions after a text that grows and is rolled back."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._cache = DynamicCache()
        self._read: list[int] = []

    @torch.inference_mode()
    def probabilities(
        self, token_ids: Sequence[int], num_last: int
    ) -> NDArray[np.float64]:  # [num_last, vocab]
        """After each of the last tokens."""
        same = 0
        for ours, theirs in zip(self._read, token_ids, strict=False):
            if ours != theirs:
                break
            same += 1
        same = min(same, len(token_ids) - num_last)
        if same < len(self._read):
            self._cache.crop(same - len(self._read))
        self._read = list(token_ids)
        logits = self._model(
            torch.tensor([token_ids[same:]]), past_key_values=self._cache, use_cache=True
        ).logits[0, -num_last:]
        return logits.double().softmax(dim=1).numpy()


def greedy_commit(answer: Sequence[int], proposal: Proposal, done: int) -> tuple[int, ...]:
    """What the target adds to `done` tokens of its answer."""
    rest = answer[done:]
    num_accepted = 0
    for proposed, token_id in zip(proposal.token_ids, rest, strict=False):
        if proposed != token_id:
            break
        num_accepted += 1
    return tuple(rest[: num_accepted + 1])


def replay(
    proposer: ModelProposer,
    prompt: Sequence[int],
    answer: Sequence[int],
    target: Target | None,
    options: argparse.Namespace,
    rng: np.random.Generator,
) -> Iterator[Step]:
    """Runs one request; with a `target` at temperature 1, else along its greedy answer."""
    sampling, text = (GREEDY if target is None else SAMPLED), list(prompt)
    proposer.open(OpenSession(1, tuple(text), len(text), sampling, options.depth))
    committed = (answer[0],)
    outcomes: list[Proposal] = []
    while len(text) + len(committed) < len(prompt) + options.tokens:
        proposer.commit(Commit(1, len(text), committed, options.depth, 0))
        text += committed
        answers = proposer.propose([1])
        proposal = answers[0] if answers else proposal_ahead(outcomes, text)
        while proposer.work():
            pass
        outcomes = proposer.take_ahead()
        followed = proposer._ahead._followed.get(1)
        if target is None:
            committed = greedy_commit(answer, proposal, len(text) - len(prompt))
        else:
            p = target.probabilities([*text, *proposal.token_ids], len(proposal.token_ids) + 1)
            committed = verify(p, proposal.token_ids, proposal.distributions, rng).token_ids
        if len(committed) + len(text) - len(prompt) >= min(options.tokens, len(answer)):
            break
        ahead = frozenset((p.position - len(text) - 1, p.last_token_id) for p in outcomes)
        if followed is not None:  # else its prompt is still being read
            yield Step(followed.flight, committed, ahead)
    proposer.close(1)


def proposal_ahead(outcomes: Sequence[Proposal], text: Sequence[int]) -> Proposal:
    """What the target has, where the draft did not answer."""
    key = (len(text), text[-1])
    return next(p for p in outcomes if (p.position, p.last_token_id) == key)


def outcome_of(step: Step) -> tuple[int, int]:
    return len(step.committed) - 1, step.committed[-1]


def is_covered(step: Step) -> bool:
    """Whether the added token is in the draft's support at its place."""
    num_accepted, added = outcome_of(step)
    if num_accepted >= len(step.flight.candidates):
        return False
    q = step.flight.candidates
    return bool((q.token_ids[num_accepted] == added)[q.probabilities[num_accepted] > 0].any())


def geometric(step: Step, budget: int, ratio: float) -> set[tuple[int, int]]:
    """The f likeliest at each place, f falling by `ratio` from place to place.

    Each is rounded, so that all together may be a few more than the budget: in this one's favour.
    """
    flight = step.flight
    weights = ratio ** np.arange(len(flight.candidates))
    counts = np.floor(budget * weights / weights.sum() + 0.5).astype(int)
    chosen = set()
    for place, count in enumerate(counts):
        ids, q = flight.candidates.token_ids[place], flight.candidates.probabilities[place]
        proposed = flight.token_ids[place : place + 1]
        others = [int(i) for i, p in zip(ids, q, strict=True) if p > 0 and (int(i),) != proposed]
        chosen |= {(place, token_id) for token_id in others[:count]}
    return chosen


def likeliest(
    steps: Sequence[Step], sampling: SamplingSettings, budget: int
) -> Iterator[set[tuple[int, int]]]:
    """Ours, once the probabilities have been learnt from the steps before."""
    model = OutcomeModel()
    for step in steps:
        p = model.probabilities(step.flight, sampling, verified_rate=1.0)
        best = np.argsort(-p, axis=None)[:budget]
        rows, columns = np.unravel_index(best, p.shape)
        ids = step.flight.candidates.token_ids
        yield {(int(r), int(ids[r, c])) for r, c in zip(rows, columns, strict=True) if p[r, c] > 0}
        model.observe(step.flight, step.committed, sampling)


def curve(
    steps: Sequence[Step], sampling: SamplingSettings, fan_outs: Sequence[int]
) -> dict[str, Any]:
    """Hit rates by budget."""
    num = len(steps)
    result: dict[str, Any] = {
        "num_steps": num,
        "tokens_per_step": sum(len(step.committed) for step in steps) / num,
        "ceiling": sum(is_covered(step) for step in steps) / num,
        "run": sum(outcome_of(step) in step.ahead for step in steps) / num,
        "likeliest": {},
        "geometric": {},
    }
    for fan_out in fan_outs:
        ours = likeliest(steps, sampling, fan_out)
        hits = sum(outcome_of(s) in chosen for s, chosen in zip(steps, ours, strict=True))
        result["likeliest"][fan_out] = hits / num
        result["geometric"][fan_out] = max(
            sum(outcome_of(s) in geometric(s, fan_out, ratio) for s in steps) / num
            for ratio in (0.3, 0.5, 0.7, 0.85, 1.0)
        )
    return result


def pass_ms(draft: LanguageModel, answer: Answer, num_branches: int, depth: int) -> float:
    """The median time of a pass with so many branches, and now and then a session's last token."""
    config = ModelDraftConfig(model="draft", fan_out=num_branches, support=SUPPORT)
    proposer = ModelProposer(draft, config, torch.Generator().manual_seed(1), stopped_clock)
    text = list(answer.prompt)
    proposer.open(OpenSession(1, tuple(text), len(text), GREEDY, depth))
    durations = []
    for token_id in answer.answer[:60]:
        proposer.commit(Commit(1, len(text), (token_id,), depth, 0))
        text.append(token_id)
        proposer.propose([1])
        started_s = time.perf_counter()
        while proposer.work():
            durations.append(time.perf_counter() - started_s)
            started_s = time.perf_counter()
    return 1e3 * statistics.median(durations)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draft", default="bundled:smollm2-135m-instruct-draft")
    parser.add_argument("--answers", type=Path, required=True, help="the target's")
    parser.add_argument("--kinds", nargs="+", default=list(WORKLOADS))
    parser.add_argument("--num", type=int, default=12, help="answers of each kind")
    parser.add_argument("--tokens", type=int, default=160, help="of each answer")
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--fan-out", type=int, default=8, help="of the run itself")
    parser.add_argument("--budgets", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    config = ModelDraftConfig(model=options.draft, fan_out=options.fan_out, support=SUPPORT)
    draft = load_language_model(resolve(config.model), config)
    model = AutoModelForCausalLM.from_pretrained(resolve(MODEL), dtype=torch.float32)
    if not options.answers.exists():
        write_answers(options.answers)
    rows = [Answer(*row) for row in json.loads(options.answers.read_text())]
    answers = [answer for answer in rows if answer.setting == "greedy"]
    result: dict[str, Any] = {
        "meta": collect_meta(sys.argv[1:], "python -m loadtest.outcome_hits"),
        "depth": options.depth,
    }
    result["pass_ms"] = {n: pass_ms(draft, answers[0], n, options.depth) for n in NUM_BRANCHES}
    print("ms per pass, by branches", result["pass_ms"], flush=True)
    started_s = time.monotonic()
    for name, sampling in (("greedy", GREEDY), ("temperature 1", SAMPLED)):
        proposer = ModelProposer(draft, config, torch.Generator().manual_seed(1), stopped_clock)
        rng = np.random.default_rng(1)
        steps: list[Step] = []
        for kind in options.kinds:
            for answer in [a for a in answers if a.kind == kind][: options.num]:
                target = None if sampling.is_greedy else Target(model)
                steps += replay(proposer, answer.prompt, answer.answer, target, options, rng)
        result[name] = curve(steps, sampling, options.budgets)
        print(name, json.dumps(result[name]), f"{time.monotonic() - started_s:.0f} s", flush=True)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
