"""The words of `specray plan`, and what is wrong with them."""

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from specray.cli.plot import check_format, require_matplotlib
from specray.config import MAX_DEPTH
from specray.errors import InvalidConfigError
from specray.simulate.agreement import bundled_records

_Number = TypeVar("_Number", int, float)
_MOST_DRAFTS = 64


class Loads(NamedTuple):
    """What is tried."""

    qps: tuple[float, ...]
    drafts: tuple[int, ...]
    depths: tuple[int, ...]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `specray plan`."""
    parser.add_argument(
        "config", nargs="?", type=Path, help="a Serve config file, as for `specray serve`"
    )
    models = parser.add_argument_group("instead of a file, or over it")
    models.add_argument("--target", metavar="MODEL", help="folder, hub id or `bundled:NAME`")
    models.add_argument("--draft", metavar="MODEL", help="of the draft; `prompt_lookup` for none")
    models.add_argument("--hardware", metavar="GPU", help="of a target, such as H100")
    models.add_argument("--draft-hardware", metavar="GPU", help="of a draft; the target's")
    models.add_argument("--tp", type=int, metavar="N", help="GPUs of a target")
    models.add_argument("--targets", type=int, default=1, metavar="N", help="target replicas (1)")
    load = parser.add_argument_group("the load")
    load.add_argument("--qps", default="0.5,1,2,4,8,16", help="requests per second (%(default)s)")
    load.add_argument("--prompt-tokens", type=float, default=1000, metavar="N", help="mean (1000)")
    load.add_argument("--answer-tokens", type=float, default=250, metavar="N", help="mean (250)")
    load.add_argument("--spread", type=float, default=0.5, help="deviation over mean (%(default)s)")
    load.add_argument(
        "--cached-tokens", type=int, default=0, metavar="N", help="of each prompt, in the KV cache"
    )
    load.add_argument(
        "--pattern", choices=("poisson", "bursty", "diurnal"), default="poisson", help="arrivals"
    )
    load.add_argument(
        "--arrivals", type=Path, metavar="FILE", help="replay these instead, over and over"
    )
    load.add_argument(
        "--acceptance",
        default="0.7",
        metavar="A",
        help="a rate, rates by place `0.8,0.7,0.6`, a record, or bundled:NAME[/KIND] with NAME of "
        f"{', '.join(bundled_records())} (%(default)s)",
    )
    load.add_argument(
        "--ahead", type=float, default=0.0, metavar="H", help="share drafted ahead in time (0)"
    )
    tried = parser.add_argument_group("what is tried")
    tried.add_argument("--drafts", default="1,2", help="draft replicas, in all (%(default)s)")
    tried.add_argument("--depths", default="1,3,5", help="fixed depths (%(default)s)")
    tried.add_argument("--max-depth", type=int, metavar="N", help="the file's, or 5")
    tried.add_argument("--tpot-ms", type=float, metavar="MS", help="p95 that capacity must hold")
    tried.add_argument("--seconds", type=float, help="simulated, each; by default long enough")
    tried.add_argument("--seed", type=int, default=0)
    tried.add_argument("--jobs", type=int, metavar="N", help="processes; all cores")
    costs = parser.add_argument_group("what things cost")
    costs.add_argument("--gpu-price", type=float, default=3.0, metavar="USD", help="an hour (3)")
    costs.add_argument("--draft-gpu-price", type=float, metavar="USD", help="the target's")
    costs.add_argument("--efficiency", type=float, default=0.8, help="of the peaks (%(default)s)")
    costs.add_argument("--overhead-ms", type=float, default=0.5, help="a step (%(default)s)")
    costs.add_argument(
        "--draft-overhead-ms",
        type=float,
        default=2.0,
        help="a draft's step (%(default)s)",
    )
    costs.add_argument(
        "--verify-overhead-ms",
        type=float,
        default=0.0,
        metavar="MS",
        help="of a target's host, before a step that verifies drafts (%(default)s)",
    )
    costs.add_argument("--network-ms", type=float, default=0.3, help="one way (%(default)s)")
    out = parser.add_argument_group("output")
    out.add_argument("--json", action="store_true", help="print everything as JSON")
    out.add_argument("--plot", type=Path, metavar="FILE", help="draw it, e.g. plan.svg")


def check(args: argparse.Namespace) -> None:
    """See that every number can be meant.

    Raises:
        InvalidConfigError: naming the option, its value and its range.
    """
    lengths = ("prompt_tokens", "answer_tokens", "seconds", "tpot_ms")
    for name in (*lengths, "gpu_price", "draft_gpu_price", "tp", "targets", "jobs"):
        _range(args, name, math.ulp(0.0), math.inf, "must be above 0")
    for name in (
        *("overhead_ms", "draft_overhead_ms", "verify_overhead_ms", "network_ms"),
        *("cached_tokens", "seed"),
    ):
        _range(args, name, 0, math.inf, "must be 0 or more")
    if args.plot is not None:
        check_format(args.plot)
        require_matplotlib()
    _range(args, "spread", 0, 5, "must be between 0 and 5")
    _range(args, "ahead", 0, 1, "must be between 0 and 1")
    _range(args, "efficiency", 0.01, 1, "must be between 0.01 and 1")
    _range(args, "max_depth", 1, MAX_DEPTH, f"must be between 1 and {MAX_DEPTH}")


def read_loads(args: argparse.Namespace) -> Loads:
    """What is tried, from lists with commas.

    Raises:
        InvalidConfigError: naming the option.
    """
    qps = _numbers("qps", args.qps, float, 1e-4, 1e4)
    drafts = _numbers("drafts", args.drafts, int, 1, _MOST_DRAFTS)
    depths = _numbers("depths", args.depths, int, 1, MAX_DEPTH) if args.depths else ()
    return Loads(qps, drafts, depths)


def _numbers(
    name: str, text: str, kind: Callable[[str], _Number], least: float, most: float
) -> tuple[_Number, ...]:
    try:
        values: Sequence[_Number] = [kind(word) for word in text.split(",")]
    except ValueError:
        raise InvalidConfigError(f"--{name}: {text!r} is no list of numbers like 1,2,4") from None
    outside = [value for value in values if not least <= value <= most]
    if outside:
        raise InvalidConfigError(f"--{name}: {outside[0]} is not between {least:g} and {most:g}")
    return tuple(sorted(set(values)))


def _range(args: argparse.Namespace, name: str, least: float, most: float, rule: str) -> None:
    value = getattr(args, name)
    if value is not None and not (least <= value <= most and math.isfinite(value)):
        raise InvalidConfigError(f"--{name.replace('_', '-')}: {value} {rule}")
