"""Whether predicted survivals come true: replays a target's answers, draws a reliability diagram.

    python -m loadtest.survival_calibration --answers build/answers.json \
        --json loadtest/results/survival.json --svg loadtest/results/survival.svg

Answers are those of `loadtest.lookup_acceptance`, which writes them on its first run. A draft
proposes five tokens, the survival model predicts each, what agrees with the answer is accepted, and
the model learns: every prediction is made before its outcome is known. The first answers of each
draft only teach. A model that samples is verified by what its tokens were drawn from, where
agreement with an answer says nothing: there the target writes the answers anew from the same
prompts. That takes minutes: `--only` and `--most` make it less.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from transformers import AutoModelForCausalLM, DynamicCache

from loadtest.lookup_acceptance import DEPTH, SETTINGS, Answer
from loadtest.lookup_acceptance import MODEL as TARGET
from specray.cli.bench.report import collect_meta
from specray.config import DraftConfig, ModelDraftConfig
from specray.control.acceptance import request_acceptance
from specray.control.calibration import NUM_BINS, Calibration, expected_error
from specray.control.survival import Offer, SurvivalModel, Verification
from specray.draft.factory import make_proposer
from specray.draft.proposer import Proposer
from specray.models.sources import resolve
from specray.sampling import reference
from specray.sampling.reference import Verdict
from specray.sampling.truncation import BatchSampling, truncate
from specray.types import Commit, OpenSession, SamplingSettings, TruncatedDistributions

DRAFT = "bundled:smollm2-135m-instruct-draft"
NUM_LESSONS = 5  # answers that only teach
MOST_WORK = 100  # calls, for a prefill


class Series(NamedTuple):
    name: str
    draft: DraftConfig
    setting: str
    hides_confidence: bool
    colour: str

    @property
    def is_drawn(self) -> bool:
        """Whether its tokens come with what they were drawn from."""
        return self.draft.method == "model" and self.setting != "greedy"


LOOKUP = DraftConfig()
MODEL = DraftConfig(
    method="model", model=ModelDraftConfig(model=DRAFT, dtype="float32", device="cpu", fan_out=1)
)
ALL_SERIES = (
    Series("prompt lookup, greedy", LOOKUP, "greedy", False, "#1b6ca8"),
    Series("prompt lookup, T=0.7", LOOKUP, "T=0.7", False, "#7fb3d5"),
    Series("model, greedy", MODEL, "greedy", False, "#c0392b"),
    Series("model, greedy, no confidences", MODEL, "greedy", True, "#e59866"),
    Series("model, T=0.7", MODEL, "T=0.7", False, "#7d3c98"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Predicted against true survival of draft tokens.")
    parser.add_argument("--answers", type=Path, required=True)
    parser.add_argument("--most", type=int, default=33, help="answers of each series")
    parser.add_argument("--only", action="append", choices=[series.name for series in ALL_SERIES])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--svg", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    answers = [Answer(*answer) for answer in json.loads(args.answers.read_text())]
    figures: dict[str, Any] = {}
    for series in ALL_SERIES:
        if args.only and series.name not in args.only:
            continue
        chosen = [answer for answer in answers if answer.setting == series.setting][: args.most]
        figures[series.name] = figure(replay_all(series, chosen))
        print(series.name, json.dumps(figures[series.name]), flush=True)
    if args.json:
        meta = collect_meta(sys.argv[1:], "python -m loadtest.survival_calibration")
        args.json.write_text(json.dumps({"meta": meta, "series": figures}, indent=1) + "\n")
    if args.svg:
        args.svg.write_text(diagram(figures))


def replay_all(series: Series, answers: list[Answer]) -> Calibration:
    proposer, model = make_proposer(series.draft), SurvivalModel()
    target = Target() if series.is_drawn else None
    for i, answer in enumerate(answers):
        if i == NUM_LESSONS:
            model.calibration = Calibration()
        replay(proposer, model, answer, series, target.begin(answer) if target else Known(answer))
    return model.calibration


class Text(Protocol):
    """An answer that is being written."""

    is_over: bool

    def verify(
        self, added: list[int], token_ids: tuple[int, ...], q: TruncatedDistributions | None
    ) -> Verdict:
        """What a proposal, drawn from `q`, comes to behind the tokens `added` last."""


class Known:
    """A recorded answer: what agrees with it is accepted. Exact for point masses only."""

    is_over = False  # before its last token

    def __init__(self, answer: Answer) -> None:
        self._left = answer.answer

    def verify(
        self, added: list[int], token_ids: tuple[int, ...], q: TruncatedDistributions | None
    ) -> Verdict:
        """See `Text.verify`."""
        del q
        self._left = self._left[len(added) :]
        pairs = enumerate(zip(token_ids, self._left, strict=False))
        num_agreed = next((i for i, (a, b) in pairs if a != b), len(token_ids))
        return Verdict(tuple(self._left[: num_agreed + 1]), num_agreed)


class Target:
    """The bundled target as a `Text`: verifies by rejection sampling, one answer at a time."""

    def __init__(self) -> None:
        path = resolve(TARGET)
        self.is_over = False
        self._model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self._rng = np.random.default_rng(0)
        self._cache = DynamicCache()
        self._sampling = SamplingSettings()

    def begin(self, answer: Answer) -> "Target":
        """Forget the text before; the next one goes on from the answer's prompt."""
        self.is_over = False
        self._cache, self._sampling = DynamicCache(), SETTINGS[answer.setting]
        self._logits(answer.prompt)
        return self

    def verify(
        self, added: list[int], token_ids: tuple[int, ...], q: TruncatedDistributions | None
    ) -> Verdict:
        """See `Text.verify`."""
        logits = self._logits([*added, *token_ids])[-len(token_ids) - 1 :]
        p = self._distributions(logits)
        verdict = reference.verify(p, token_ids, q, self._rng)
        if num_rejected := len(token_ids) - verdict.num_accepted:
            self._cache.crop(-num_rejected)
        self.is_over = self._model.config.eos_token_id in verdict.token_ids
        return verdict

    @torch.inference_mode()
    def _logits(self, token_ids: list[int]) -> torch.Tensor:  # [tokens, vocab]
        found = self._model(torch.tensor([token_ids]), past_key_values=self._cache).logits
        return torch.as_tensor(found[0])

    def _distributions(self, logits: torch.Tensor) -> reference.Probabilities:  # [tokens, vocab]
        rows = BatchSampling.of([self._sampling] * len(logits), logits.device)
        kept = truncate(logits, rows, logits.shape[1])
        dense = torch.zeros_like(logits).scatter_add_(1, kept.token_ids, kept.probabilities)
        return dense.double().numpy()


def replay(
    proposer: Proposer, model: SurvivalModel, answer: Answer, series: Series, text: Text
) -> None:
    sampling, acceptance = SETTINGS[answer.setting], request_acceptance()
    length = len(answer.prompt)
    proposer.open(OpenSession(1, tuple(answer.prompt), length, sampling, DEPTH))
    for _ in range(MOST_WORK):
        if not proposer.work():
            break
    added, num_left = answer.answer[:1], len(answer.answer) - 1
    while num_left > 0 and not text.is_over:
        proposer.commit(Commit(1, length, tuple(added), DEPTH, 0))
        length += len(added)
        proposed = next(iter(proposer.propose([1])), None)
        token_ids = proposed.token_ids[:num_left] if proposed else ()
        q = proposed.distributions if proposed else None
        verdict = text.verify(added, token_ids, q)
        if proposed and token_ids:
            shown = q.largest() if q is not None else proposed.confidences
            shown = () if series.hides_confidence else shown[: len(token_ids)]
            offer = Offer(acceptance, proposed.source, len(token_ids), sampling.temperature, shown)
            model.observe([Verification(offer, verdict.num_accepted)])
        added = list(verdict.token_ids)
        num_left -= len(added)
    proposer.close(1)


def figure(seen: Calibration) -> dict[str, Any]:
    tokens, accepted = seen.num_tokens.tolist(), seen.num_accepted.tolist()
    predicted = seen.sum_predicted.tolist()
    return {
        "expected_calibration_error": round(expected_error(tokens, accepted, predicted), 4),
        "num_tokens": tokens,
        "predicted": [
            round(p / n, 4) if n else None for p, n in zip(predicted, tokens, strict=True)
        ],
        "accepted": [round(a / n, 4) if n else None for a, n in zip(accepted, tokens, strict=True)],
    }


SIZE, LEFT, TOP = 440, 70, 50


def diagram(figures: dict[str, Any]) -> str:
    """A reliability diagram; a point's area is its share of the tokens."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{SIZE + 370}" height="{SIZE + 120}" '
        'font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
        text(LEFT, 28, "Survival of draft tokens: predicted and true", size=16),
        line(0, 0, 1, 1, "#999999", "4 4"),
    ]
    for tick in range(0, NUM_BINS + 1, 2):
        share = tick / NUM_BINS
        parts += [line(share, 0, share, 1, "#eeeeee"), line(0, share, 1, share, "#eeeeee")]
        parts.append(text(x_of(share) - 9, y_of(0) + 20, f"{share:.1f}"))
        parts.append(text(LEFT - 32, y_of(share) + 4, f"{share:.1f}"))
    parts.append(text(LEFT + 130, y_of(0) + 45, "predicted probability of survival"))
    parts.append(
        f'<text transform="translate(18 {TOP + 300}) rotate(-90)">share that was accepted</text>'
    )
    drawn = [series for series in ALL_SERIES if series.name in figures]
    for i, series in enumerate(drawn):
        found = figures[series.name]
        parts += points(found, series.colour)
        y = TOP + 20 + 44 * i
        parts.append(f'<circle cx="{LEFT + SIZE + 20}" cy="{y}" r="6" fill="{series.colour}"/>')
        parts.append(text(LEFT + SIZE + 34, y + 4, series.name))
        error, count = found["expected_calibration_error"], sum(found["num_tokens"])
        parts.append(
            text(LEFT + SIZE + 34, y + 21, f"calibration error {error:.3f}, {count:,} tokens")
        )
    parts.append(text(LEFT + SIZE + 14, TOP + 40 + 44 * len(drawn), "dashed: as predicted"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def points(found: dict[str, Any], colour: str) -> list[str]:
    total = max(1, sum(found["num_tokens"]))
    rows = zip(found["predicted"], found["accepted"], found["num_tokens"], strict=True)
    known = [(p, a, n) for p, a, n in rows if n]
    path = " ".join(f"{x_of(p):.1f},{y_of(a):.1f}" for p, a, _ in known)
    circles = [
        f'<circle cx="{x_of(p):.1f}" cy="{y_of(a):.1f}" r="{3 + 18 * (n / total) ** 0.5:.1f}" '
        f'fill="{colour}" fill-opacity="0.55"/>'
        for p, a, n in known
    ]
    return [f'<polyline points="{path}" fill="none" stroke="{colour}"/>', *circles]


def x_of(share: float) -> float:
    return LEFT + SIZE * share


def y_of(share: float) -> float:
    return TOP + SIZE * (1 - share)


def line(x1: float, y1: float, x2: float, y2: float, colour: str, dashes: str = "") -> str:
    return (
        f'<line x1="{x_of(x1):.1f}" y1="{y_of(y1):.1f}" x2="{x_of(x2):.1f}" y2="{y_of(y2):.1f}" '
        f'stroke="{colour}" stroke-dasharray="{dashes}"/>'
    )


def text(x: float, y: float, content: str, size: int = 13) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}">{content}</text>'


if __name__ == "__main__":
    main()
