"""Step (e): what the draft will bring, measured against the target itself on held-out prompts."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from specray.distill.formulas import best_depth, expected_speeds, survival
from specray.distill.shards import Answer

_DEPTH = 8


class Agreement(NamedTuple):
    """Draft and target at every token of one answer."""

    accepted: NDArray[np.float64]  # [tokens], see `formulas.survival`
    overlap: NDArray[np.float64]  # [tokens], sum of min(p, q)


@dataclass(frozen=True, slots=True)
class KindReport:
    """Figures of one kind of prompt, greedy or sampled at temperature 1."""

    kind: str
    mode: str
    num_answers: int
    num_tokens: int
    first_token: float  # accepted of the first proposed token
    survival: list[float]  # of chains of 1, 2, ... tokens
    tokens_per_step: list[float]  # at depth 1, 2, ...
    recommended_depth: int
    speedup: float  # at that depth


@torch.inference_mode()
def compare(target: Any, draft: Any, answer: Answer, token_ids: torch.Tensor) -> Agreement:
    """Runs both over one answer of the target's.

    Args:
        target: a causal LM.
        draft: another, with the same tokens.
        answer: of the target's.
        token_ids: [columns], those that the draft may propose; the others it gives no chance.
    """
    text = torch.from_numpy(np.concatenate((answer.prompt_ids, answer.token_ids)).astype(np.int64))
    start = len(answer.prompt_ids) - 1
    p_logits, q_logits = (_logits(model, text, start) for model in (target, draft))
    mask = torch.full_like(q_logits[0], -torch.inf)
    mask[token_ids.to(mask.device)] = 0
    q_logits = q_logits + mask
    width = min(p_logits.shape[1], q_logits.shape[1])  # beyond is padding that one of them has
    p, q = p_logits.softmax(-1)[:, :width], q_logits.softmax(-1)[:, :width]
    if answer.is_greedy:
        accepted = (p_logits.argmax(-1) == q_logits.argmax(-1)).double()
    else:
        tokens = text[start + 1 :, None].to(p.device)
        is_known = tokens < width
        inside = tokens.where(is_known, 0)
        ratios = q.gather(1, inside) / p.gather(1, inside)
        accepted = ratios.where(is_known, 0.0).clamp(max=1)[:, 0].double()
    overlap = torch.minimum(p, q).sum(-1).double()
    return Agreement(accepted.cpu().numpy(), overlap.cpu().numpy())


def _logits(model: Any, text: torch.Tensor, start: int) -> torch.Tensor:  # [tokens, vocab]
    """What a model says from `start` on; padding that only the other one has is id 0 for it."""
    known = text.where(text < model.get_input_embeddings().num_embeddings, 0)
    return model(known[None].to(model.device)).logits[0, start:-1].float()


def summarise(
    kinds: Sequence[str],
    answers: Sequence[Answer],
    agreements: Sequence[Agreement],
    cost_ratio: float,
) -> list[KindReport]:
    """Figures for each kind and for all together, greedy and sampled apart.

    Args:
        kinds: of each answer's prompt.
        answers: as compared.
        agreements: one for each answer.
        cost_ratio: see `formulas.expected_speeds`.
    """
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for index, (kind, answer) in enumerate(zip(kinds, answers, strict=True)):
        mode = "greedy" if answer.is_greedy else "sampled"
        groups["all", mode].append(index)
        groups[kind, mode].append(index)
    return [
        _summarise_group(kind, mode, [agreements[i] for i in indices], cost_ratio)
        for (kind, mode), indices in sorted(groups.items())
    ]


def _summarise_group(
    kind: str, mode: str, agreements: Sequence[Agreement], cost_ratio: float
) -> KindReport:
    lengths = np.array([len(a.accepted) for a in agreements])
    chances = np.average([survival(a.accepted, _DEPTH) for a in agreements], 0, weights=lengths)
    first = [a.accepted if mode == "greedy" else a.overlap for a in agreements]
    speeds = expected_speeds(chances.tolist(), cost_ratio)
    best = best_depth(speeds)
    return KindReport(
        kind, mode, len(agreements), int(lengths.sum()),
        first_token=float(np.concatenate(first).mean()),
        survival=[round(float(chance), 4) for chance in chances],
        tokens_per_step=[round(speed.tokens_per_step, 3) for speed in speeds],
        recommended_depth=best.depth,
        speedup=round(best.speedup, 3),
    )  # fmt: skip


def to_json(reports: Sequence[KindReport], curve: Sequence[Any], facts: dict[str, Any]) -> Any:
    """The report for machines."""
    return {**facts, "kinds": [asdict(report) for report in reports], "curve": list(curve)}


def to_markdown(report: dict[str, Any]) -> str:
    """The report for people, from the one for machines."""
    return "\n".join(_markdown_lines(report)) + "\n"


def _markdown_lines(report: dict[str, Any]) -> Iterator[str]:
    yield f"# Draft for {report['target']}"
    yield ""
    yield "Made by"
    yield ""
    yield "```bash"
    yield from report["commands"]
    yield "```"
    yield ""
    yield f"- layers of the target: {report['layers']}"
    num_different = min(report["trained_tokens"], report["train_tokens"])
    yield (
        f"- trained on {report['trained_tokens']:,} answer tokens, {num_different:,} of "
        f"them different, for {report['minutes']:.0f} minutes, by {report['loss']}, until "
        "these layers, which were its best"
    )
    yield (
        f"- a draft's step is taken to cost {report['cost_ratio']:.3f} of a target's (bytes of "
        "their weights); speedups are for batch 1 and take verification to be free"
    )
    yield ""
    yield (
        "Held-out prompts; text that was sampled is sampled at temperature 1. How often the first "
        "proposed token is accepted, how often all of the first 2, 3, 5 and 8, and what it brings."
    )
    yield ""
    yield (
        "| prompts | text | answers | first token | 2 / 3 / 5 / 8 | tokens/step at 3 / 5 / 8 | "
        "depth | speedup |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for kind in report["kinds"]:
        chains = _by_depth(kind["survival"], (2, 3, 5, 8))
        steps = _by_depth(kind["tokens_per_step"], (3, 5, 8))
        yield (
            f"| {kind['kind']} | {kind['mode']} | {kind['num_answers']} | "
            f"{kind['first_token']:.3f} | {chains} | {steps} | {kind['recommended_depth']} | "
            f"{kind['speedup']:.2f} |"
        )
    yield ""
    yield "| tokens | KL | greedy agreement | overlap, sampled |"
    yield "|---|---|---|---|"
    for point in report["curve"]:
        yield (
            f"| {point['tokens']:,} | {point['loss']:.3f} | {point['greedy_agreement']:.3f} | "
            f"{point['sampled_overlap']:.3f} |"
        )


def _by_depth(figures: Sequence[float], depths: Sequence[int]) -> str:
    return " / ".join(f"{figures[depth - 1]:.2f}" for depth in depths)
