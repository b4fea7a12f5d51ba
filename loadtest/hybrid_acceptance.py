"""What each source of a hybrid draft adds, on prompts of which none was trained on.

    python loadtest/hybrid_texts.py --folder build/hybrid     # once, minutes
    python loadtest/hybrid_acceptance.py --folder build/hybrid --json loadtest/results/NAME.json

Each answer is replayed with the real look-up, hybrid and n-gram model; only the model's passes come
from the folder. The next token x of an answer is known, so a proposal from q is accepted with
probability min(1, q(x) / p(x)): over texts that were drawn from p that is exactly what speculative
sampling does (`distill/formulas.py`). `first_token` is the mean over all positions, of sum
min(p, q) where the text is sampled; `tokens_per_step` is at depth 5, as a target would go, from
each rejected token to the next. A small model's greedy answers often end in a loop, which flatters
look-ups: `greedy, without loops` stops before its third round.

Recycling (arXiv 2408.08696) remembers what the target found likely behind a token the last time,
in all answers so far; a target that ships that to its draft does not exist here.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent))
from hybrid_texts import SETTINGS, Says, Text, read_says, read_texts

from specray.cli.bench.report import collect_meta
from specray.config import PromptLookupConfig
from specray.control.acceptance import INITIAL_RATE, expected_length
from specray.distill.loops import loop_start
from specray.draft.hybrid import HybridProposer
from specray.draft.prompt_lookup import PromptLookup
from specray.draft.proposer import Proposer
from specray.draft.session import Session
from specray.models.ngrams import NgramModel, Opinion, load_ngrams
from specray.types import Commit, OpenSession, Proposal, SamplingSettings

DEPTH = 5
SUPPORT = 32
KINDS = ("chat", "summarising", "code")


class Expert(Protocol):
    """Knows a part of the distribution of what comes next; the rest is left to others."""

    def opinion(self, session: Session, drafted: Sequence[int]) -> Opinion | None: ...


class Sparse(NamedTuple):
    """A distribution over few tokens."""

    token_ids: NDArray[np.int64]
    probs: NDArray[np.float64]

    def of(self, token_id: int) -> float:
        return float(self.probs[self.token_ids == token_id].sum())

    def filtered(self, sampling: SamplingSettings, most: int) -> "Sparse":
        """Temperature, top-p and renormalisation, as draft and target do it."""
        order = np.argsort(-self.probs)
        probs = self.probs[order]
        if sampling.is_greedy:
            return Sparse(self.token_ids[order[:1]], np.ones(1))
        probs = probs ** (1 / sampling.temperature)
        probs /= probs.sum()
        is_kept = (probs.cumsum() - probs < sampling.top_p) & (np.arange(len(probs)) < most)
        return Sparse(self.token_ids[order][is_kept], probs[is_kept] / probs[is_kept].sum())

    def mixed(self, opinion: Opinion) -> "Sparse":
        left = 1 - opinion.probabilities.sum()
        codes, where = np.unique(
            np.concatenate((self.token_ids, opinion.token_ids)), return_inverse=True
        )
        values = np.concatenate((self.probs * left, opinion.probabilities))
        return Sparse(codes, np.bincount(where, values))


def overlap(p: Sparse, q: Sparse) -> float:
    is_same = p.token_ids[:, None] == q.token_ids
    return float(np.minimum(p.probs, (is_same * q.probs).sum(1)).sum())


class World:
    """The answer that is being replayed, and what the target says of it."""

    def __init__(self, target: Says, draft: Says, seed: int = 0) -> None:
        self._target, self._draft = target, draft
        self._rng = np.random.default_rng(seed)
        self.start(Text("", "greedy", [], []), 0)

    def start(self, text: Text, offset: int) -> None:
        self.text, self._offset = text, offset
        self.sampling = SETTINGS[text.setting]

    def target(self, place: int) -> Sparse:
        return self._sparse(self._target, place, 256).filtered(self.sampling, 256)

    def draft(self, place: int) -> Sparse:
        return self._sparse(self._draft, place, 64)

    def tops(self, place: int) -> Sparse:
        return self._sparse(self._target, place, 8)

    def is_accepted(self, q: Sparse, place: int) -> bool:
        token_id = self.text.token_ids[place]
        return self._rng.random() * self.target(place).of(token_id) < q.of(token_id)

    def _sparse(self, says: Says, place: int, most: int) -> Sparse:
        at = self._offset + place
        return Sparse(says.token_ids[at, :most].astype(np.int64), np.exp(says.logprobs[at, :most]))


class Recycling:
    """The target's likely tokens behind each token, as it last found them."""

    def __init__(self, world: World, weight: float) -> None:
        self._world, self._weight = world, weight
        self._next: dict[int, Opinion] = {}

    def learn(self, places: Sequence[int]) -> None:
        text = self._world.text
        for place in places:
            tops = self._world.tops(place)
            before = text.token_ids[place - 1] if place else text.prompt_ids[-1]
            probs = (tops.probs * self._weight).astype(np.float32)
            self._next[before] = Opinion(tops.token_ids, probs)

    def opinion(self, session: Session, drafted: Sequence[int]) -> Opinion | None:
        return self._next.get([session.token_ids[-1], *drafted][-1])


class Ngrams:
    """An n-gram model, mixed in by a weight."""

    def __init__(self, ngrams: NgramModel, weight: float = 1.0) -> None:
        self._ngrams, self._weight = ngrams, weight

    def opinion(self, session: Session, drafted: Sequence[int]) -> Opinion | None:
        opinion = self._ngrams.opinion([*session.token_ids[-8:], *drafted])
        if opinion is None:
            return None
        return opinion._replace(probabilities=opinion.probabilities * np.float32(self._weight))


class ReplayedModel:
    """Proposes what a model, and what is mixed into it, would: as far as the text accepts it."""

    def __init__(self, world: World, experts: Sequence[Expert], *, has_model: bool = True) -> None:
        self._world, self._experts, self._has_model = world, experts, has_model
        self._session = Session(OpenSession(1, (0,), 1, SamplingSettings(), 0))
        self.last: list[Sparse] = []

    def open(self, session: OpenSession) -> None:
        self._session = Session(session)

    def commit(self, commit: Commit) -> None:
        self._session.extend(commit)
        for expert in self._experts:
            if isinstance(expert, Recycling):
                first = commit.position - len(self._world.text.prompt_ids)
                expert.learn(range(first, first + len(commit.token_ids)))

    def close(self, session_id: int) -> None: ...

    def work(self) -> bool:
        return False

    def take_evicted(self) -> list[int]:
        return []

    def propose(self, session_ids: Sequence[int]) -> list[Proposal]:
        return [self._session.proposal(self.drafted(()), "model") for _ in session_ids]

    def drafted(self, copied: Sequence[int]) -> list[int]:
        """Up to the depth, behind tokens that were copied; just these where the text differs."""
        world, session = self._world, self._session
        first = len(session) - len(world.text.prompt_ids)
        rest = world.text.token_ids[first : first + session.depth]
        drafted, num_copied = list(copied), len(copied)
        if drafted != rest[:num_copied]:
            return drafted
        self.last = []
        for place, token_id in enumerate(rest[num_copied:], start=first + num_copied):
            q = self._distribution(place, drafted)
            if q is None:
                break
            self.last.append(q)
            if not world.is_accepted(q, place):
                drafted.append(next((int(i) for i in q.token_ids if i != token_id), -1))
                break
            drafted.append(token_id)
        return drafted

    def _distribution(self, place: int, drafted: Sequence[int]) -> Sparse | None:
        q = Sparse(np.zeros(0, np.int64), np.zeros(0))
        if self._has_model:
            q = self._world.draft(place)
        for expert in self._experts:
            opinion = expert.opinion(self._session, drafted)
            if opinion is not None:
                q = q.mixed(opinion)
        return q.filtered(self._world.sampling, SUPPORT) if len(q.probs) else None


class ContinuedLookup(HybridProposer):
    """Cuts a copy where the model is expected to get further, and lets the model continue it.

    Within one proposal, so that the copy has to wait for the model.
    """

    def __init__(self, lookup: PromptLookup, model: ReplayedModel, margin: float) -> None:
        """Takes the sources, and what the model's rate is better than usual behind a copy."""
        super().__init__(lookup, model)
        self._copies, self._continuing, self._margin = lookup, model, margin

    def propose(self, session_ids: Sequence[int]) -> list[Proposal]:
        copied, *ahead = super().propose(session_ids)
        if copied.source != "prompt_lookup" or not copied.token_ids:
            return [copied, *ahead]
        (session_id,) = session_ids
        session, state = self._copies.session(session_id), self._states[session_id]
        prior = self._rates[session.sampling.is_greedy].rate(INITIAL_RATE)
        rate = min(1.0, state.acceptance.rate(prior) + self._margin)

        def length(num_copied: int) -> float:
            rest = [rate] * (session.depth - num_copied)
            return expected_length([*copied.confidences[:num_copied], *rest])

        kept = copied.token_ids[: max(range(len(copied.token_ids), 0, -1), key=length)]
        drafted = tuple(self._continuing.drafted(kept))
        return [replace(copied, token_ids=drafted, confidences=()), *ahead]


class Drafted(NamedTuple):
    """A draft to be measured."""

    proposer: Proposer
    model: ReplayedModel | None


def make_drafts(world: World, ngrams: NgramModel | None) -> dict[str, Callable[[], Drafted]]:
    def alone(*experts: Expert, has_model: bool = True) -> Drafted:
        model = ReplayedModel(world, experts, has_model=has_model)
        return Drafted(model, model)

    def hybrid(*experts: Expert, has_model: bool = True) -> Drafted:
        model = ReplayedModel(world, experts, has_model=has_model)
        return Drafted(HybridProposer(PromptLookup(PromptLookupConfig()), model), model)

    def continued(margin: float) -> Drafted:
        model = ReplayedModel(world, ())
        return Drafted(ContinuedLookup(PromptLookup(PromptLookupConfig()), model, margin), model)

    drafts = {
        "look-up": lambda: Drafted(PromptLookup(PromptLookupConfig()), None),
        "recycling": lambda: alone(Recycling(world, 1.0), has_model=False),
        "model": lambda: alone(),
        "look-up, model": lambda: hybrid(),
        "look-up, model continuing copies": lambda: continued(0.0),
        "look-up, model continuing copies sooner": lambda: continued(0.1),
        "look-up, model with recycling mixed in": lambda: hybrid(Recycling(world, 0.1)),
    }
    if ngrams is not None:
        drafts |= {
            "n-grams": lambda: alone(Ngrams(ngrams), has_model=False),
            "look-up, n-grams": lambda: hybrid(Ngrams(ngrams), has_model=False),
            "look-up, n-grams with recycling mixed in": lambda: hybrid(
                Ngrams(ngrams), Recycling(world, 0.3), has_model=False
            ),
            "look-up, model with n-grams mixed in": lambda: hybrid(Ngrams(ngrams, 0.3)),
        }
    return drafts


class Walk(NamedTuple):
    """One text, walked from verification to verification."""

    first: list[float]  # chance of each proposal's first token
    num_steps: int


def walk(draft: Drafted, world: World, stop: int, *, is_every: bool) -> Walk:
    """Goes through an answer; `is_every`: by one token each time, whatever was accepted."""
    text = world.text
    length, end = len(text.prompt_ids), len(text.prompt_ids) + stop
    tokens = [*text.prompt_ids, *text.token_ids]
    proposer = draft.proposer
    proposer.open(OpenSession(1, tuple(text.prompt_ids), length, world.sampling, DEPTH))
    taken, first, num_steps = 1, [], 0
    while True:
        proposer.commit(Commit(1, length, tuple(tokens[length : length + taken]), DEPTH, 0))
        length += taken
        if length >= end:
            break
        proposal = proposer.propose([1])[0]
        first.append(chance(draft, world, proposal, length - len(text.prompt_ids)))
        pairs = list(zip(proposal.token_ids, tokens[length:end], strict=False))
        agreed = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
        taken = 1 if is_every else min(agreed + 1, end - length)
        num_steps += 1
    proposer.close(1)
    return Walk(first, num_steps)


def chance(draft: Drafted, world: World, proposal: Proposal, place: int) -> float:
    """Of the first token to be accepted."""
    if not proposal.token_ids:
        return 0.0
    if world.sampling.is_greedy:
        return float(proposal.token_ids[0] == world.text.token_ids[place])
    if proposal.source == "model" and draft.model is not None:
        return overlap(world.target(place), draft.model.last[0])
    return world.target(place).of(proposal.token_ids[0])


def figures(
    make: Callable[[], Drafted], world: World, texts: Sequence[tuple[int, Text]], *, loops: bool
) -> dict[str, Any]:
    first: dict[str, list[float]] = {kind: [] for kind in (*KINDS, "all")}
    tokens, steps = dict.fromkeys(first, 0), dict.fromkeys(first, 0)
    for is_every in (True, False):
        draft = make()  # what it learns, it learns from these texts
        for offset, text in texts:
            world.start(text, offset)
            stop = len(text.token_ids) if loops else loop_start(np.array(text.token_ids, np.int32))
            walked = walk(draft, world, stop, is_every=is_every)
            for kind in (text.kind, "all"):
                if is_every:
                    first[kind] += walked.first
                else:
                    tokens[kind] += stop - 1
                    steps[kind] += walked.num_steps
    return {
        "first_token": {k: round(float(np.mean(v)), 4) for k, v in first.items()},
        "tokens_per_step": {k: round(tokens[k] / max(1, steps[k]), 3) for k in tokens},
        "num_tokens": tokens["all"],
    }


def rows(
    folder: Path, draft: str, ngrams: NgramModel | None, only: str, seed: int
) -> Iterator[dict[str, Any]]:
    texts = read_texts(folder)
    offsets = np.cumsum([0, *(len(text.token_ids) for text in texts)])
    placed = list(zip(offsets.tolist(), texts, strict=False))
    world = World(read_says(folder, "target"), read_says(folder, draft), seed)
    for setting in SETTINGS:
        chosen = [(offset, text) for offset, text in placed if text.setting == setting]
        for name, make in make_drafts(world, ngrams).items():
            if only in name:
                row = {"setting": setting, "draft": name}
                yield {**row, **figures(make, world, chosen, loops=True)}
                if setting == "greedy":
                    short = figures(make, world, chosen, loops=False)
                    yield {**row, "setting": "greedy, without loops", **short}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--draft", default="draft", help="name of the draft's file in the folder")
    parser.add_argument("--ngrams", type=Path, help="folder with an n-gram model")
    parser.add_argument("--only", default="", help="drafts whose name has this in it")
    parser.add_argument("--seed", type=int, default=0, help="of what is accepted of samples")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    args = parser.parse_args()
    ngrams = load_ngrams(args.ngrams) if args.ngrams else None
    made = []
    for row in rows(args.folder, args.draft, ngrams, args.only, args.seed):
        made.append(row)
        print(json.dumps(row), flush=True)
    if args.json is not None:
        meta = collect_meta(sys.argv, "python")
        args.json.write_text(json.dumps({"meta": meta, "rows": made}, indent=1) + "\n")


if __name__ == "__main__":
    main()
