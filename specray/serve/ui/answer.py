"""One answer as it arrives, with the tokens that a draft guessed marked as such."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Annotated, Any

from pydantic import Field, NonNegativeInt, PositiveInt

from specray.config.base import Settings
from specray.router.watch import SessionWatch
from specray.target.names import DEPTH_ARG
from specray.types import Accepted

_LONGEST = 4096
_CLOSING_S = 0.5  # the router hears of a session's end about when the client does
_PERIOD_S = 0.02


class Question(Settings):
    """What the prompt box sends."""

    prompt: Annotated[str, Field(min_length=1)]
    model: str | None = None
    max_tokens: Annotated[PositiveInt, Field(le=_LONGEST)] = 256
    temperature: Annotated[float, Field(ge=0.0, le=2.0)] = 0.0
    num_speculative_tokens: NonNegativeInt | None = None  # 0 switches speculation off


def chat_request(question: Question, model: str) -> dict[str, Any]:
    """The question as the body of a chat completion that tells its tokens apart."""
    depth = question.num_speculative_tokens
    return {
        "model": question.model or model,
        "messages": [{"role": "user", "content": question.prompt}],
        "max_tokens": question.max_tokens,
        "temperature": question.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
        "logprobs": True,  # the text of each token, so that nothing here needs a tokenizer
        "top_logprobs": 0,
        "vllm_xargs": {} if depth is None else {DEPTH_ARG: depth},
    }


async def events(chunks: AsyncIterator[Any], watch: SessionWatch) -> AsyncIterator[str]:
    """Server-sent events: `tokens` as they come, `accepted` as it becomes known, `end` or `error`.

    Args:
        chunks: A streamed chat completion, as Ray Serve LLM's ingress yields it.
        watch: Of this request, at the router that it goes through, begun before it was sent.
    """
    usage = None
    async for chunk in _parsed(chunks):
        if "error" in chunk:
            yield _event("error", message=chunk["error"]["message"])
            return
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            if texts := token_texts(choice):
                yield _event("tokens", texts=texts)
        for accepted in watch.take():
            yield _accepted(accepted)
    for accepted in await _rest(watch):
        yield _accepted(accepted)
    yield _event("end", usage=usage)


def token_texts(choice: dict[str, Any]) -> list[str]:
    """A chunk's text, one piece for each of its tokens.

    Text that no token accounts for (one character may take several) goes with the last of them;
    tokens that are not shown, such as the end of a turn, have none.
    """
    text: str = choice["delta"].get("content") or ""
    tokens = (choice.get("logprobs") or {}).get("content") or ()
    pieces = []
    for token in tokens:
        piece = token["token"] if text.startswith(token["token"]) else ""
        text = text[len(piece) :]
        pieces.append(piece)
    if text:
        pieces = [*pieces[:-1], (pieces[-1] if pieces else "") + text]
    return pieces


async def _rest(watch: SessionWatch) -> Iterable[Accepted]:
    """What the router hears of after the text has ended."""
    for _ in range(round(_CLOSING_S / _PERIOD_S)):
        if watch.is_closed:
            break
        await asyncio.sleep(_PERIOD_S)
    return watch.take()


async def _parsed(chunks: AsyncIterator[Any]) -> AsyncIterator[dict[str, Any]]:
    async for answer in chunks:
        for part in answer if isinstance(answer, list) else [answer]:
            if not isinstance(part, str):
                yield part.model_dump()
                continue
            for line in _data_lines(part):
                yield json.loads(line)


def _data_lines(text: str) -> Iterator[str]:
    for line in text.splitlines():
        data = line.removeprefix("data: ")
        if line.startswith("data: ") and data != "[DONE]":
            yield data


def _accepted(accepted: Accepted) -> str:
    return _event("accepted", **accepted._asdict())


def _event(kind: str, **content: Any) -> str:
    return f"data: {json.dumps({'kind': kind} | content)}\n\n"
