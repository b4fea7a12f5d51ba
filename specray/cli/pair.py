"""`specray pair TARGET DRAFT`: whether a draft fits, how often it is right, what it would bring."""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import chain
from typing import Any

from specray.cli import USER_ERROR
from specray.cli.bench.workloads import WORKLOADS, load_prompts
from specray.cli.output import complain, say
from specray.control.speedup import DepthFigures, StepTimes, depth_figures, recommended_depth
from specray.draft.timing import DraftTimer
from specray.errors import InvalidConfigError
from specray.models.agreement import MAX_DEPTH, Agreement, measure
from specray.models.memory import is_shortage
from specray.models.pair import ModelFacts, Pair, compare

_PROMPTS_PER_KIND = 3
_ASSUMED = (0.5, 0.6, 0.7, 0.8)  # acceptance rates to look at when none can be measured
_EXAMPLE_DEPTH = 5  # whose verification is told in words: `speculation.max_depth` as it is left
_ASSUMPTIONS = (
    "drafting is taken to happen before each step: a draft that works ahead can do better",
    "MBSU goes by size alone; it and the token-rate ratio take verifying to be as fast as a token",
)

Tables = dict[str, list[DepthFigures]]
"""Figures by depth, under what they hold for."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the two models and what to do with them."""
    parser.add_argument("target", help="folder, hub id or bundled:NAME")
    parser.add_argument("draft", help="likewise")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument(
        "--seconds",
        type=float,
        default=45.0,
        metavar="S",
        help="begin no prompt after so long; 0 measures nothing (default: %(default)g)",
    )


def run(args: argparse.Namespace) -> int:
    """Compares, measures when both models' weights are on this machine, and reports.

    Returns:
        0 when the draft fits, otherwise 2, also when it could draft with the tokens it shares.

    Raises:
        InvalidConfigError: a model, its config or its tokenizer can't be read, or both models do
            not fit one device.
    """
    pair = compare(args.target, args.draft)
    agreement = None
    if pair.difference is None and args.seconds > 0 and not _missing(pair):
        agreement = _measure(pair, args)
    tables = make_tables(pair, agreement) if pair.difference is None else {}
    if args.json:
        say(json.dumps(as_json(pair, agreement, tables), indent=1))
    else:
        for line in describe(pair, agreement, tables):
            say(line)
    return 0 if pair.difference is None else USER_ERROR


def _measure(pair: Pair, args: argparse.Namespace) -> Agreement:
    try:
        served = DraftTimer(pair.draft.path)
        paths = pair.target.path, pair.draft.path
        return measure(*paths, _prompts(), args.seconds, served, _tell(args))
    except (MemoryError, RuntimeError) as error:
        if not is_shortage(error):
            raise
        raise InvalidConfigError(
            f"{args.target} and {args.draft} do not fit one device's memory together, so nothing "
            "can be measured here; --seconds 0 compares them without"
        ) from error


def make_tables(pair: Pair, agreement: Agreement | None) -> Tables:
    """What to expect at each depth, from measured acceptance or from assumed ones."""
    if agreement is None:
        return {
            f"at an assumed acceptance of {rate:g}": depth_figures(
                [rate] * MAX_DEPTH, pair.size_ratio, None
            )
            for rate in _ASSUMED
        }
    times = StepTimes(agreement.target_token_s, agreement.verification_s, agreement.draft_token_s)
    return {
        "greedy": depth_figures(agreement.greedy, pair.size_ratio, times),
        "temperature 1": depth_figures(agreement.sampled, pair.size_ratio, times),
    }


def as_json(pair: Pair, agreement: Agreement | None, tables: Tables) -> dict[str, Any]:
    """Everything that is known, for machines."""
    return {
        **asdict(pair),
        "fits": pair.difference is None,
        "size_ratio": pair.size_ratio,
        "agreement": agreement and agreement._asdict(),
        "expected": {
            name: {
                "recommended_depth": recommended_depth(figures),
                "depths": [figure._asdict() for figure in figures],
            }
            for name, figures in tables.items()
        },
    }


def describe(pair: Pair, agreement: Agreement | None, tables: Tables) -> Iterator[str]:
    """The report, line by line."""
    yield f"target  {_facts(pair.target)}"
    yield f"draft   {_facts(pair.draft)}, {pair.size_ratio:.1%} of the target"
    for note in pair.notes:
        yield f"note: {note}"
    if pair.difference is not None:
        yield from _describe_difference(pair)
        return
    yield "tokenizer: every token has the same id for both"
    missing = _missing(pair)
    if agreement is not None:
        yield from _describe_agreement(agreement)
    elif missing:
        yield f"acceptance: not measured, as the weights of {' and '.join(missing)} are not here"
    yield from _ASSUMPTIONS
    for name, figures in tables.items():
        yield ""
        yield from _describe_table(name, figures)


def _describe_difference(pair: Pair) -> Iterator[str]:
    if not pair.num_shared:
        yield f"the draft can't be used: {pair.difference}"
        yield "take one of the target's family, train one (`specray distill`), or draft without"
        return
    yield f"the draft can't be used as it is: {pair.difference}"
    yield (
        f"with `draft.model.target_tokenizer: {pair.target.name}` it drafts with the "
        f"{pair.num_shared} tokens that both have, which is not measured here; one of the target's "
        "family or a trained one (`specray distill`) has them all"
    )


def _describe_agreement(agreement: Agreement) -> Iterator[str]:
    yield f"acceptance by place in the chain, over {agreement.num_tokens} tokens of the target's:"
    for name, rates in (("greedy", agreement.greedy), ("temperature 1", agreement.sampled)):
        yield f"  {name:<13}  " + "  ".join(f"{rate:.2f}" for rate in rates)
    verified_ms = 1e3 * agreement.verification_s[_EXAMPLE_DEPTH - 1]
    yield "times of one request alone, the target's in transformers (in vLLM they are others):"
    yield (
        f"  target        {1e3 * agreement.target_token_s:.1f} ms a step without a draft, "
        f"{verified_ms:.1f} ms to verify {_EXAMPLE_DEPTH} draft tokens"
    )
    yield f"  draft         {1e3 * agreement.draft_token_s:.1f} ms a token, as a replica runs it"


def _describe_table(name: str, figures: Sequence[DepthFigures]) -> Iterator[str]:
    yield name
    yield "  depth  tokens/step  MBSU  token-rate ratio  with verification"
    for figure in figures:
        line = f"  {figure.depth:>5}  {figure.block_efficiency:>11.2f}  {figure.mbsu:.2f}"
        if figure.token_rate_ratio is not None:
            line += f"  {figure.token_rate_ratio:>16.2f}  {figure.with_verification:>17.2f}"
        yield line
    depth = recommended_depth(figures)
    if depth == 0:
        yield "  recommended depth: 0; drafting before each step would be slower than none"
        return
    best = figures[depth - 1]
    gain = f"{best.speedup:.2f} times as fast where verification takes no longer than a token"
    if best.with_verification is not None:
        gain += f", {best.with_verification:.2f} where it takes what transformers does here"
    yield f"  recommended depth: {depth}, {gain}"


def _facts(model: ModelFacts) -> str:
    size = f"{_count(model.num_parameters)} parameters"
    if model.num_active_parameters < model.num_parameters:
        size += f" ({_count(model.num_active_parameters)} for each token)"
    return f"{model.name}: {size}, {model.num_tokens} tokens"


def _count(number: int) -> str:
    millions = number / 1e6
    return f"{millions:.0f} M" if millions < 1000 else f"{millions / 1000:.1f} B"


def _missing(pair: Pair) -> list[str]:
    return [model.name for model in (pair.target, pair.draft) if not model.has_weights]


def _prompts() -> list[str]:
    """Some of the benchmark's prompts, kind by kind in turn, so that any prefix is a fair one."""
    kinds = [load_prompts(workload)[:_PROMPTS_PER_KIND] for workload in WORKLOADS]
    return list(chain.from_iterable(zip(*kinds, strict=True)))


def _tell(args: argparse.Namespace) -> Any:
    """Progress goes where it does not mix with JSON."""
    return complain if args.json else say
