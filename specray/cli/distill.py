"""`specray distill TARGET OUT`: a draft for a model of your own."""

import argparse
import logging
import shlex
import signal
import sys
from pathlib import Path

import torch
from platformdirs import user_cache_path

from specray.cli.output import say
from specray.distill import STEPS, DistillSettings, Pipeline
from specray.distill.losses import LOSSES
from specray.distill.settings import COMPILING, ENGINES
from specray.errors import InvalidConfigError
from specray.models.memory import is_shortage
from specray.models.sources import resolve


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `specray distill`."""
    defaults = DistillSettings.__dataclass_fields__
    add = parser.add_argument
    add("target", help="folder, hub id or bundled:NAME of an instruct model")
    add("out", type=Path, help="folder for the draft")
    add("--only", choices=STEPS, default="all", metavar="STEP", help=f"one of {', '.join(STEPS)}")
    add("--minutes", type=float,
        help="budget of time: the training's share ends by the clock, prompts and answers are as "
        "many as usually fit the rest (default: 60)")  # fmt: skip
    add("--tokens", type=int, help="budget of answer tokens to train on, instead of --minutes")
    add("--work", type=Path, help="folder of intermediate files; the same one resumes")
    add("--engine", choices=ENGINES, default="auto", help="what generates the answers")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto")
    add("--threads", type=int, help="CPU threads (default: torch's)")
    add("--prompts", type=Path, action="append", default=[], metavar="FILE.jsonl",
        help='your own prompts: {"prompt": ...} or ShareGPT; may be repeated')  # fmt: skip
    add("--only-prompts", action="store_true", help="train on your own prompts only")
    add("--num-prompts", type=int, help="prompts to make (default: by the budget)")
    add("--layers", type=_layers, metavar="I,J,...", help="the target's layers to keep")
    add("--student", help="a smaller model with the same tokenizer, instead of layers")
    add("--loss", choices=tuple(LOSSES), default="forward_kl")
    add("--compile", choices=COMPILING, default="auto", dest="compiling",
        help="whether the layers learn compiled (default: where the training goes on for more "
        "than ten minutes)")  # fmt: skip
    add("--part", type=_part, default=(0, 1), metavar="I/N",
        help="with --only answers: only every N-th file from the I-th")  # fmt: skip
    add("--take-new", action="store_true",
        help="train also on answers that came since the training began")  # fmt: skip
    add("--from", type=Path, dest="start", metavar="FOLDER",
        help="go on with layers that were trained before: another work folder, or a draft of "
        "--layers-only")  # fmt: skip
    add("--layers-only", action="store_true",
        help="export only what was trained, in int8, instead of a whole model")  # fmt: skip
    for name in ("num_held_out", "max_answer_tokens", "max_prompt_tokens", "top_k",
                 "num_layers", "num_shared", "rate", "batch_tokens", "head_tokens",
                 "seed"):  # fmt: skip
        default = defaults[name].default
        add(f"--{name.replace('_', '-')}", type=type(default), default=default)


def run(args: argparse.Namespace) -> int:
    """Distils; the same command resumes what was killed.

    Returns:
        0 when all is done.

    Raises:
        InvalidConfigError: naming the switch, the file and the line, or the field; or the target
            does not fit the device.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    # Also where a shell started this in the background, which makes Python ignore SIGINT.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    _set_threads(args.threads)
    settings = _settings(args)
    try:
        Pipeline(settings, "specray " + shlex.join(sys.argv[1:])).run(args.only)
    except (MemoryError, RuntimeError) as error:
        if not is_shortage(error):
            raise
        raise InvalidConfigError(
            f"target {args.target}: out of memory on {settings.device}, which has to hold all of "
            "it, in float32 from the student on; name a smaller target or use a larger device, or "
            "lower --max-prompt-tokens if it was the answers that ended so, --batch-tokens if it "
            "was the training"
        ) from error
    if args.only in ("all", "export"):
        say(f"the draft is in {settings.out}")
    return 0


def _set_threads(count: int | None) -> None:
    if count is None:
        return
    if count < 1:
        raise InvalidConfigError(f"--threads {count}: must be more than 0")
    torch.set_num_threads(count)


def _settings(args: argparse.Namespace) -> DistillSettings:
    device = args.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    target = resolve(args.target)
    same = ("tokens", "engine", "num_prompts", "layers", "student", "loss", "part", "num_held_out",
            "max_answer_tokens", "max_prompt_tokens", "top_k", "num_layers", "num_shared", "rate",
            "batch_tokens", "head_tokens", "seed", "start", "compiling")  # fmt: skip
    return DistillSettings(
        name=args.target,
        target=target,
        out=args.out,
        work=args.work or _default_work(args.target),
        minutes=60.0 if args.minutes is None and args.tokens is None else args.minutes,
        device=device,
        prompt_files=tuple(args.prompts),
        only_files=args.only_prompts,
        layers_only=args.layers_only,
        takes_new=args.take_new,
        **{name: getattr(args, name) for name in same},
    )


def _default_work(target: str) -> Path:
    name = target.removeprefix("bundled:").rstrip("/").rsplit("/", 1)[-1]
    return user_cache_path("specray") / "distill" / name


def _layers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InvalidConfigError(f"--layers {text}: numbers, separated by commas") from None


def _part(text: str) -> tuple[int, int]:
    try:
        index, count = text.split("/")
        return int(index), int(count)
    except ValueError:
        raise InvalidConfigError(f"--part {text}: I/N, such as 0/2") from None
