"""The draft as a folder that transformers loads, with what specray wants to know about it."""

import shutil
from functools import partial
from pathlib import Path
from typing import Any

from specray.distill.student_choice import chosen_layers, trained_layers
from specray.distill.work import WorkFolder, write_json, write_whole
from specray.errors import InvalidConfigError
from specray.models.draft_layers import DRAFT_FILE, DraftLayers, write_layers


def save_draft(draft: Any, tokenizer: Any, facts: dict[str, Any], out: Path) -> None:
    """Writes model, tokenizer, chat template and `specray_draft.json`.

    Args:
        draft: embeddings and head included.
        tokenizer: the target's.
        facts: `head_token_ids`, the tokens it may propose by falling frequency, and where it is
            from.
        out: a folder; made if it is not there.
    """
    out.mkdir(parents=True, exist_ok=True)
    draft.save_pretrained(out)
    tokenizer.save_pretrained(out)
    write_json(out / DRAFT_FILE, facts)


def save_layers(work: WorkFolder, facts: dict[str, Any], out: Path) -> None:
    """Writes only what was trained, in int8: the rest is the target's.

    Raises:
        InvalidConfigError: the student was not cut from the target.
    """
    layers = chosen_layers(work)
    if not layers:
        raise InvalidConfigError("--layers-only: the student was not cut from the target")
    trained = trained_layers(work)
    first = len(layers) - len(trained)
    shifted = {first + index: weights for index, weights in trained.items()}
    write_layers(DraftLayers(tuple(layers), shifted), facts, out)


def copy_beside(work: WorkFolder, out: Path) -> None:
    """Puts the reports, and the n-gram model if there is one, beside the draft."""
    for path in (work.report, work.markdown, work.ngrams):
        if path.is_file():
            write_whole(out / path.name, partial(shutil.copy, path))
