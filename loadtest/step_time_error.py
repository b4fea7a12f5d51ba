"""How well step times are predicted: replays the steps that `loadtest.record_steps` wrote down.

    python -m loadtest.step_time_error loadtest/results/steps.json --json loadtest/results/....json

Four figures, each a median of relative errors over steps that the model had not learnt from:
`next`, each step before it is learnt, as when serving; `held_out`, a random 30 % of the steps that
are never learnt, each predicted when its turn comes; `at_the_end`, the same predicted after all the
others, when the machine may have become faster or slower; `later`, the last 30 % after learning
from what came before.
"""

import argparse
import json
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from specray.cli.bench.report import collect_meta
from specray.control.hardware import HardwareProfile
from specray.control.roofline import ModelShape, Roofline, StepLoad
from specray.control.step_time import StepTimeModel

Step = tuple[StepLoad, float]
Errors = list[tuple[StepLoad, float]]

# SmolLM2-135M in float32 on one core that reads 10.5 GB/s and computes 150 GFLOP/s.
CORE = HardwareProfile("core", 10.5e9, {"float32": 150e9}, 0.0)
SMOLLM2 = ModelShape(134.5e6, 538e6, 46_080, 30, 576, "float32", 4.0)
COLUMNS = [*StepLoad._fields, "seconds", "is_decode_only"]
SKIPPED = 3  # the first steps warm things up


def main() -> None:
    parser = argparse.ArgumentParser(description="Predicted against recorded step times.")
    parser.add_argument("steps", type=Path)
    parser.add_argument("--decode-only", action="store_true", help="leave out steps with prefill")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    recorded = read_recorded(args.steps)
    steps = [
        (StepLoad(*row[:-2]), row[-2])
        for row in recorded["steps"]
        if row[1] > 0 and (row[-1] or not args.decode_only)
    ][SKIPPED:]
    figures = {}
    for name, make in (("no profile", StepTimeModel), ("roofline", with_roofline)):
        figures[name] = {
            "next": summary(next_errors(make(), steps)),
            "held_out": summary(held_out_errors(make(), steps)),
            "at_the_end": summary(at_the_end_errors(make(), steps)),
            "later": summary(later_errors(make(), steps)),
        }
        print(name, json.dumps(figures[name], indent=1))
    if args.json:
        meta: dict[str, Any] = {"recorded": recorded["meta"]}
        meta |= collect_meta(sys.argv[1:], "python -m loadtest.step_time_error")
        result = {"meta": meta, "num_steps": len(steps), "figures": figures}
        args.json.write_text(json.dumps(result, indent=1) + "\n")


def read_recorded(path: Path) -> dict[str, Any]:
    recorded: dict[str, Any] = json.loads(path.read_text())
    if recorded.get("columns") != COLUMNS:
        sys.exit(f"{path} has other columns than {', '.join(COLUMNS)}: record it anew")
    return recorded


def with_roofline() -> StepTimeModel:
    return StepTimeModel(Roofline(SMOLLM2, CORE))


def next_errors(model: StepTimeModel, steps: Sequence[Step]) -> Errors:
    errors = []
    for load, seconds in steps:
        errors.append((load, error(model, load, seconds)))
        model.observe(load, seconds)
    return errors


def held_out_errors(model: StepTimeModel, steps: Sequence[Step]) -> Errors:
    held_out = held_out_of(steps)
    errors = []
    for i, (load, seconds) in enumerate(steps):
        if i in held_out:
            errors.append((load, error(model, load, seconds)))
        else:
            model.observe(load, seconds)
    return errors


def at_the_end_errors(model: StepTimeModel, steps: Sequence[Step]) -> Errors:
    held_out = held_out_of(steps)
    learn(model, [step for i, step in enumerate(steps) if i not in held_out])
    return [(steps[i][0], error(model, *steps[i])) for i in sorted(held_out)]


def held_out_of(steps: Sequence[Step]) -> set[int]:
    return set(random.Random(0).sample(range(len(steps)), round(0.3 * len(steps))))


def later_errors(model: StepTimeModel, steps: Sequence[Step]) -> Errors:
    split = round(0.7 * len(steps))
    learn(model, steps[:split])
    return [(load, error(model, load, seconds)) for load, seconds in steps[split:]]


def learn(model: StepTimeModel, steps: Sequence[Step]) -> None:
    for load, seconds in steps:
        model.observe(load, seconds)


def error(model: StepTimeModel, load: StepLoad, seconds: float) -> float:
    return abs(model.step_s(load) / seconds - 1)


def summary(errors: Errors) -> dict[str, float]:
    groups: dict[str, Callable[[StepLoad], bool]] = {
        "all": lambda load: load.num_requests >= 1,
        "1 request": lambda load: load.num_requests == 1,
        "2 to 4": lambda load: 2 <= load.num_requests <= 4,
        "5 and more": lambda load: load.num_requests >= 5,
    }
    medians = {}
    for name, holds in groups.items():
        found = [size for load, size in errors if holds(load)]
        medians[name] = round(statistics.median(found), 4) if found else float("nan")
    return medians


if __name__ == "__main__":
    main()
