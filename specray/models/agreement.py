"""How often a draft would be right about a target's own text, measured with plain transformers."""

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from specray.models.causal_lm import load_causal_lm
from specray.models.pass_times import pass_times
from specray.models.tokenizers import load_tokenizer

MAX_DEPTH = 8
_NUM_TOKENS = 64  # of each answer
_NUM_SAMPLED = 3  # answers to a prompt at temperature 1, next to the greedy one


class Agreement(NamedTuple):
    """Acceptance by place in the chain, given that all before was accepted, and what steps take.

    All seconds are of one request alone.
    """

    greedy: list[float]
    sampled: list[float]  # at temperature 1: the first is the overlap, the sum of min(p, q)
    num_tokens: int  # of the answers
    target_token_s: float  # of a step without a draft, in transformers
    verification_s: list[float]  # of one that verifies 1, 2, ... draft tokens, so of one more token
    draft_token_s: float  # of each token of a proposal


class ServedDraft(Protocol):
    """The draft as a replica runs it."""

    @property
    def head_token_ids(self) -> Tensor | None:
        """The only tokens that it proposes, [columns]; None if it proposes all."""
        ...

    def token_s(self, prompt: Sequence[int]) -> float:
        """Seconds for each token of a proposal behind a prompt."""
        ...


class _Text(NamedTuple):
    """Some answers to one prompt; the first is greedy, the others are drawn at temperature 1."""

    token_ids: Tensor  # [rows, prompt + answer]
    probabilities: Tensor  # [rows, answer]: of each token, for the model that wrote it


def measure(
    target: str,
    draft: str,
    prompts: Sequence[str],
    budget_s: float,
    served: ServedDraft,
    tell: Callable[[str], None],
) -> Agreement:
    """Lets the target answer, and asks the draft about every token of the answers.

    Args:
        target: a resolved model with weights; float32 on a CPU, bfloat16 on a GPU.
        draft: likewise.
        prompts: user messages, answered in order.
        budget_s: no prompt is begun later than this; the first one always is.
        served: the same draft; which tokens it proposes, and how fast.
        tell: hears about progress.

    Raises:
        InvalidConfigError: a model can't be loaded.
    """
    models = [load_causal_lm(path) for path in (target, draft)]
    tokenizer = load_tokenizer(target)
    generator = torch.Generator(models[0].device).manual_seed(0)
    allowed = served.head_token_ids
    greedy, sampled, passes_s, draft_s = [], [], [], []
    started_s = time.monotonic()
    for index, prompt in enumerate(prompts, start=1):
        if index > 1 and time.monotonic() - started_s > budget_s:
            break
        prompt_ids = _prompt_ids(tokenizer, prompt).to(models[0].device)
        start = prompt_ids.shape[1]
        text = _write(models[0], prompt_ids, _NUM_TOKENS, generator)
        first, *others = _accepted(models[1], text, start, tokenizer.eos_token_id, allowed)
        greedy.append(first)
        sampled += others
        next_ids = text.token_ids[:1, start : start + MAX_DEPTH + 1]
        passes_s.append(pass_times(models[0], prompt_ids, next_ids))
        draft_s.append(served.token_s(prompt_ids[0].tolist()))
        tell(f"prompt {index} of {len(prompts)}, {time.monotonic() - started_s:.0f} s")
    # The fastest: what the machine does besides only adds.
    token_s, *verification_s = (min(seconds) for seconds in zip(*passes_s, strict=True))
    return Agreement(
        chain_rates(greedy),
        chain_rates(sampled),
        num_tokens=sum(map(len, greedy + sampled)),
        target_token_s=token_s,
        verification_s=verification_s,
        draft_token_s=min(draft_s),
    )


def chain_rates(answers: Sequence[Tensor]) -> list[float]:
    """Acceptance by place in a chain that may start at any token, up to `MAX_DEPTH` places.

    Args:
        answers: of each answer, how likely each token is accepted given those before it.
    """
    rates, previous = [], 1.0
    for depth in range(1, MAX_DEPTH + 1):
        chains = [
            answer.double().unfold(0, depth, 1).prod(dim=1)
            for answer in answers
            if len(answer) >= depth
        ]
        if not chains:
            break
        survival = float(torch.cat(chains).mean())
        rates.append(min(1.0, survival / previous) if previous > 0 else 0.0)
        previous = survival
    return rates


def _prompt_ids(tokenizer: Any, prompt: str) -> Tensor:  # [1, prompt]
    if tokenizer.chat_template:
        messages = [{"role": "user", "content": prompt}]
        prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    token_ids = tokenizer(prompt, add_special_tokens=not tokenizer.chat_template).input_ids
    return torch.tensor([token_ids])


@torch.inference_mode()
def _write(model: Any, prompt_ids: Tensor, num_tokens: int, generator: torch.Generator) -> _Text:
    """One greedy and some sampled answers; all go on after their end, which costs nothing."""
    steps = islice(_steps(model, prompt_ids, generator), num_tokens)
    token_ids, probabilities = zip(*steps, strict=True)
    rows = prompt_ids.expand(1 + _NUM_SAMPLED, -1)
    return _Text(torch.cat((rows, torch.stack(token_ids, 1)), dim=1), torch.stack(probabilities, 1))


def _steps(
    model: Any, prompt_ids: Tensor, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Endlessly: each row's next token [rows], and its probability."""
    token_ids, cache = prompt_ids.expand(1 + _NUM_SAMPLED, -1), None
    while True:
        output = model(token_ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = output.past_key_values
        p = output.logits[:, -1].float().softmax(dim=1)
        token_ids = torch.multinomial(p, 1, generator=generator)
        token_ids[0] = p[0].argmax()
        yield token_ids[:, 0], p.gather(1, token_ids)[:, 0]


@torch.inference_mode()
def _accepted(
    draft: Any, text: _Text, num_prompt: int, eos_id: int | None, allowed: Tensor | None
) -> list[Tensor]:
    """Of each answer up to its end, how likely a verification accepts each of its tokens.

    Greedy: whether the draft would have said the same. Sampled: a verification writes x with
    probability p(x), and accepted it from the draft with probability min(p(x), q(x)); so given
    the text the acceptances are independent, min(1, q / p) each.

    Args:
        draft: the model, with its whole head.
        text: the answers, behind their prompt.
        num_prompt: tokens of the prompt.
        eos_id: what ends an answer.
        allowed: the tokens that share all of the draft's probability, [columns]; None: all do.
    """
    num_tokens = text.probabilities.shape[1]
    # Tokens that only the target has are id 0 for the draft, which proposes none of them.
    known = text.token_ids.where(text.token_ids < draft.get_input_embeddings().num_embeddings, 0)
    logits = draft(known.to(draft.device), logits_to_keep=num_tokens + 1).logits[:, :-1].float()
    if allowed is not None:
        mask = torch.full_like(logits[0, 0], -torch.inf)
        mask[allowed.to(mask.device)] = 0
        logits += mask
    answers = text.token_ids[:, num_prompt:].to(draft.device)  # [rows, answer]
    is_known = answers < logits.shape[2]
    q = logits.softmax(dim=2).gather(2, answers.where(is_known, 0).unsqueeze(2))[..., 0] * is_known
    accepted = (q / text.probabilities.to(draft.device)).clamp(max=1.0)
    accepted[0] = (logits[0].argmax(dim=1) == answers[0]).float()
    return [row[: _length(ids, eos_id)].cpu() for row, ids in zip(accepted, answers, strict=True)]


def _length(answer: Tensor, eos_id: int | None) -> int:
    """Tokens up to the first end of text, with it."""
    ends = (answer == eos_id).nonzero() if eos_id is not None else answer[:0]
    return int(ends[0]) + 1 if len(ends) else len(answer)
