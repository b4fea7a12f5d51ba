"""Records how far proposals agree with a target's answers, for the simulator.

    python -m loadtest.record_agreement --answers build/answers.json
    python -m loadtest.record_agreement     # the bundled model's only

The answers are those of `loadtest.lookup_acceptance`, which makes the file if it is not there.
Prompt lookup is replayed over each: at every place, what it would propose and how much of that the
answer confirms. For point masses that is exact at every temperature, whatever was verified before.
The bundled model draft comes as rates by place in the chain, from its own report.
"""

import argparse
import json
import sys
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Any

from loadtest.lookup_acceptance import Answer, write_answers
from specray.cli.bench.report import collect_meta
from specray.config import PromptLookupConfig
from specray.draft.prompt_lookup import PromptLookup
from specray.draft.proposer import Proposer
from specray.types import Commit, OpenSession, SamplingSettings

DEPTH = 16
SETTINGS = {"greedy": "greedy", "T=1": "t1"}
MODES = {"greedy": "greedy", "sampled": "t1"}
FOLDER = Path("specray/simulate/records")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--answers", type=Path)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    args = parser.parse_args()
    meta = collect_meta(sys.argv[1:], "python -m loadtest.record_agreement")
    answers = read_answers(args.answers) if args.answers else []
    for setting, name in SETTINGS.items() if answers else ():
        chosen = [answer for answer in answers if answer.setting == setting]
        entries = [
            {"kind": answer.kind, **replay(answer, PromptLookup(PromptLookupConfig()))}
            for answer in chosen
        ]
        write(args.folder / f"smollm2-lookup-{name}.json", meta, "answers", entries)
        print(f"{setting}: {tokens_per_step(entries):.3f} tokens per step at depth 5")
    for mode, name in MODES.items():
        write(args.folder / f"smollm2-draft-{name}.json", meta, "rates", draft_rates(mode))


def read_answers(path: Path) -> list[Answer]:
    if not path.exists():
        write_answers(path)
    return [Answer(*row) for row in json.loads(path.read_text())]


def replay(answer: Answer, draft: Proposer) -> dict[str, list[int]]:
    """By place: index i is about a proposal behind the first i tokens of the answer.

    Takes a draft whose proposals are greedy and do not take time: look-ups and n-grams.
    """
    draft.open(OpenSession(1, tuple(answer.prompt), len(answer.prompt), SamplingSettings(), DEPTH))
    proposed, right = [], []
    for place, token_id in enumerate(answer.answer):
        guess, rest = draft.propose([1])[0].token_ids, answer.answer[place:]
        pairs = enumerate(zip(guess, rest, strict=False))
        agreed = next((i for i, (a, b) in pairs if a != b), min(len(guess), len(rest)))
        proposed.append(len(guess))
        right.append(agreed)
        draft.commit(Commit(1, len(answer.prompt) + place, (token_id,), DEPTH, 0))
    draft.close(1)
    return {"proposed": proposed, "right": right}


def tokens_per_step(entries: Iterable[dict[str, Any]], depth: int = 5) -> float:
    num_tokens = num_steps = 0
    for entry in entries:
        place = 1  # the prefill adds the first token
        while place < len(entry["right"]):
            advance = min(depth, entry["right"][place]) + 1
            num_steps += 1
            num_tokens += min(advance, len(entry["right"]) - place)
            place += advance
    return num_tokens / max(1, num_steps)


def draft_rates(mode: str) -> dict[str, list[float]]:
    text = files("specray.models").joinpath("smollm2_draft/report.json").read_text("utf-8")
    kinds = [k for k in json.loads(text)["kinds"] if k["mode"] == mode and k["kind"] != "all"]
    return {kind["kind"]: given_the_last(kind["survival"]) for kind in kinds}


def given_the_last(survival: list[float]) -> list[float]:
    before = [1.0, *survival]
    return [round(now / last, 4) for now, last in zip(survival, before, strict=False)]


def write(path: Path, meta: dict[str, str], name: str, content: Any) -> None:
    """One entry a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, dict):
        lines = [f"  {json.dumps(kind)}: {json.dumps(rates)}" for kind, rates in content.items()]
        body = "{\n" + ",\n".join(lines) + "\n }"
    else:
        body = "[\n" + ",\n".join(f"  {json.dumps(entry)}" for entry in content) + "\n ]"
    path.write_text(f'{{\n "meta": {json.dumps(meta)},\n "{name}": {body}\n}}\n')


if __name__ == "__main__":
    main()
