"""Greedy answers over HTTP, and whether two of them differ by more than rounding."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import httpx

from tests.serve.prompts import PROMPTS
from tests.serve.service import MODEL, Service

MAX_TOKENS = 48
CLOSE_LOGITS = 1e-3  # nats; batches of other sizes round float32 sums differently


class Answer(NamedTuple):
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]


def answer(service: Service, prompt: str, depth: int | None = None) -> Answer:
    """The greedy answer to a chat prompt; a depth caps the request's speculation."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": prompt}],
        "temperature": 0,
        "max_tokens": MAX_TOKENS,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    if depth is not None:
        body["vllm_xargs"] = {"num_speculative_tokens": depth}
    reply = httpx.post(f"{service.url}/chat/completions", json=body, timeout=300.0)
    assert reply.status_code == 200, reply.text
    choice = reply.json()["choices"][0]
    assert len(choice["token_ids"]) == MAX_TOKENS
    return Answer(tuple(reply.json()["prompt_token_ids"]), tuple(choice["token_ids"]))


def answers(
    service: Service, prompts: Sequence[str], depth: int | None = None, at_once: int = 1
) -> list[Answer]:
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda prompt: answer(service, prompt, depth), prompts))


class PlainAnswers:
    """Each prompt's answer at depth 0; asked for once, as the target is always the same."""

    def __init__(self) -> None:
        self._known: list[Answer] = []

    def __call__(self, service: Service) -> list[Answer]:
        self._known = self._known or answers(service, PROMPTS, depth=0, at_once=8)
        return self._known


def assert_same(service: Service, expected: Sequence[Answer], got: Sequence[Answer]) -> None:
    """Token by token; a difference passes only where the target itself is all but undecided."""
    for plain, speculated in zip(expected, got, strict=True):
        assert plain.prompt_ids == speculated.prompt_ids
        if plain.token_ids == speculated.token_ids:
            continue
        pairs = zip(plain.token_ids, speculated.token_ids, strict=True)
        position = next(i for i, (a, b) in enumerate(pairs) if a != b)
        gap = _gap(service, [*plain.prompt_ids, *plain.token_ids[:position]])
        assert gap < CLOSE_LOGITS, f"differs at {position}, where the logits are {gap} apart"


def _gap(service: Service, token_ids: list[int]) -> float:
    """How far the two most likely next tokens are apart, in log-probability."""
    body = {"model": MODEL, "prompt": token_ids, "max_tokens": 1, "temperature": 0, "logprobs": 2}
    reply = httpx.post(f"{service.url}/completions", json=body, timeout=300.0).json()
    first, second = sorted(reply["choices"][0]["logprobs"]["top_logprobs"][0].values())[::-1][:2]
    return float(first - second)
