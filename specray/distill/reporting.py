"""Step (e) as a whole: the trained draft is compared with the target and the result written."""

from typing import Any

import torch
from transformers import AutoConfig

from specray.distill.engines import load_model
from specray.distill.prompts import HELD_OUT, load_prompts
from specray.distill.provenance import read_curve
from specray.distill.report import compare, summarise, to_json, to_markdown
from specray.distill.settings import DistillSettings
from specray.distill.shards import find_shards, load_shard
from specray.distill.student import layers_of
from specray.distill.work import WorkFolder, write_json, write_text


def write_report(
    settings: DistillSettings, work: WorkFolder, draft: Any, facts: dict[str, Any]
) -> None:
    """Writes the report of a draft.

    Args:
        settings: name the target.
        work: has the held-out answers, and takes the report.
        draft: a causal LM, as it will be used.
        facts: of its making, by `provenance.describe`.
    """
    target = load_model(settings.target, settings.device, torch.float32)
    kinds = [prompt.kind for prompt in load_prompts(work) if prompt.split == HELD_OUT]
    answers = [answer for path in find_shards(work, HELD_OUT) for answer in load_shard(path)]
    head = work.read_head()
    agreements = [compare(target, draft, answer, torch.tensor(head)) for answer in answers]
    whole_bytes = _saved_bytes(settings.target)
    draft_bytes = 1 if settings.layers_only else whole_bytes
    ratio = (
        draft_bytes * _num_weights(draft, len(head)) / (whole_bytes * _num_weights(target, None))
    )
    reports = summarise([kinds[a.prompt] for a in answers], answers, agreements, ratio)
    report = to_json(reports, read_curve(work), {**facts, "cost_ratio": ratio})
    write_json(work.report, report)
    write_text(work.markdown, to_markdown(report))


def _saved_bytes(model: str) -> int:
    """Bytes of one weight of a model as it was saved."""
    config: Any = AutoConfig.from_pretrained(model)
    dtype = config.get_text_config(decoder=True).dtype or torch.float32
    return dtype.itemsize


def _num_weights(model: Any, head_tokens: int | None) -> int:
    """How many weights a step reads: the layers, and the head's rows; embeddings are looked up."""
    layers = sum(weight.numel() for weight in layers_of(model).parameters())
    rows, width = model.get_output_embeddings().weight.shape
    return layers + (head_tokens or rows) * width
