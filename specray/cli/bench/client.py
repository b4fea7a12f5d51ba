"""Streams answers from an OpenAI-compatible service, counting their tokens."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from specray.errors import StartupError

REQUEST_TIMEOUT_S = 300.0
_QUOTE_CHARS = 300  # of what the service said, in a message


@dataclass(frozen=True, slots=True)
class Request:
    """One chat completion, until the model ends it or `max_tokens` are there."""

    prompt: str
    temperature: float
    max_tokens: int
    seed: int
    max_depth: int | None = None  # None leaves the depth to the service
    ignore_eos: bool = field(kw_only=True)  # exactly `max_tokens`, whatever the model says


class Endpoint:
    """A service's `/v1`, and the model that it serves.

    `start` asks for the model's name; every method raises StartupError when the service can't be
    reached, refuses, or does not report its tokens.
    """

    def __init__(self, url: str, transport: httpx.AsyncBaseTransport | None = None) -> None:
        base = url.rstrip("/")
        self._url = base if base.endswith("/v1") else f"{base}/v1"
        self._http = httpx.AsyncClient(
            timeout=REQUEST_TIMEOUT_S,
            transport=transport,
            limits=httpx.Limits(max_connections=1024),
        )
        self._model = ""

    async def start(self) -> None:
        """Finds out which model is served."""
        url = f"{self._url}/models"
        with _failures_of(url):
            response = await self._http.get(url)
            response.raise_for_status()
        self._model = response.json()["data"][0]["id"]

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    async def complete(self, request: Request, hear: Callable[[int], None]) -> None:
        """Streams one answer; cancelling closes the stream, so that the service drops the request.

        Args:
            request: what to ask.
            hear: gets the number of new tokens whenever a chunk arrives.
        """
        url = f"{self._url}/chat/completions"
        num_tokens, has_ended = 0, False
        with _failures_of(url):
            async with self._http.stream("POST", url, json=self._body(request)) as response:
                if response.is_error:
                    await response.aread()
                response.raise_for_status()
                async for line in response.aiter_lines():
                    chunk = _read_chunk(line)
                    if chunk is None:
                        continue
                    if chunk.num_tokens > num_tokens:
                        hear(chunk.num_tokens - num_tokens)
                        num_tokens = chunk.num_tokens
                    has_ended = has_ended or chunk.is_last
        if not has_ended:
            raise StartupError(f"{url} broke off an answer after {num_tokens} tokens")
        if not num_tokens:
            raise StartupError(f"{url} gave an answer without tokens")
        if request.ignore_eos and num_tokens < request.max_tokens:
            raise StartupError(
                f"{url} ended an answer after {num_tokens} of {request.max_tokens} tokens; "
                "here lengths are given, so it has to support `ignore_eos`"
            )

    def _body(self, request: Request) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._model,
            "messages": [{"role": "user", "content": request.prompt}],
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "seed": request.seed,
            "ignore_eos": request.ignore_eos,
            "stream": True,
            # A chunk may hold several tokens: only the service knows how many it has sent.
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        if request.max_depth is not None:
            body["vllm_xargs"] = {"num_speculative_tokens": request.max_depth}
        return body


@dataclass(frozen=True, slots=True)
class _Chunk:
    num_tokens: int  # of the answer so far
    is_last: bool  # of those with text: the model has ended it, or its length is reached


def _read_chunk(line: str) -> _Chunk | None:
    """A line of the event stream, if it has a chunk of the answer."""
    name, _, data = line.partition(":")
    data = data.strip()
    if name != "data" or data == "[DONE]":
        return None
    chunk = json.loads(data)
    if "error" in chunk:
        raise StartupError(f"the service broke off an answer: {data[:_QUOTE_CHARS]}")
    if chunk.get("usage") is None:
        raise StartupError(
            "a chunk has no `usage`: the service has to support `continuous_usage_stats`; "
            f"it sent {data[:_QUOTE_CHARS]}"
        )
    ends = [choice.get("finish_reason") for choice in chunk.get("choices", ())]
    return _Chunk(
        int(chunk["usage"]["completion_tokens"]), any(end in ("stop", "length") for end in ends)
    )


@contextmanager
def _failures_of(url: str) -> Iterator[None]:
    try:
        yield
    except httpx.HTTPStatusError as error:
        text = error.response.text[:_QUOTE_CHARS]
        raise StartupError(f"{url} answered {error.response.status_code}: {text}") from error
    except httpx.HTTPError as error:
        raise StartupError(
            f"{url} can't be reached ({error!r}); is the service running?"
        ) from error
