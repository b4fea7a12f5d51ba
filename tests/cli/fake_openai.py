"""A service that streams like the real one, without a model, and time that passes by itself."""

import asyncio
import json
import selectors
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx

T = TypeVar("T")


@dataclass
class FakeOpenAI(httpx.AsyncBaseTransport):
    """What the service answers with, and what it was asked. A transport: no sockets."""

    status: int = 200
    chunk_every_s: float = 0.5
    tokens_off: int = 1  # per chunk
    tokens_on: int = 3
    alter: Callable[[dict[str, Any]], None] = lambda chunk: None  # changes a chunk in place
    bodies: list[dict[str, Any]] = field(default_factory=list)
    num_open: int = 0
    most_open: int = 0  # since the start

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self.status != 200:
            return httpx.Response(self.status, text="no room", request=request)
        if request.method == "GET":
            return httpx.Response(200, json={"data": [{"id": "fake-model"}]}, request=request)
        self.bodies.append(json.loads(await request.aread()))
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        return httpx.Response(200, stream=_Answer(self, self.bodies[-1]), request=request)

    def chunk(self, num_tokens: int, finish_reason: str | None = None) -> bytes:
        return self._line(num_tokens, [{"delta": {}, "finish_reason": finish_reason}])

    def last_chunk(self, num_tokens: int) -> bytes:
        """The whole answer's usage."""
        return self._line(num_tokens, [])

    def _line(self, num_tokens: int, choices: list[dict[str, Any]]) -> bytes:
        chunk = {"choices": choices, "usage": {"completion_tokens": num_tokens}}
        self.alter(chunk)
        return f"data: {json.dumps(chunk)}\n\n".encode()


class _Answer(httpx.AsyncByteStream):
    def __init__(self, fake: FakeOpenAI, body: dict[str, Any]) -> None:
        self._fake = fake
        self._max_tokens = body["max_tokens"]
        self._step = fake.tokens_off if "vllm_xargs" in body else fake.tokens_on

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._fake.chunk(0)  # the role
        for num_tokens in range(self._step, self._max_tokens + self._step, self._step):
            await asyncio.sleep(self._fake.chunk_every_s)
            is_last = num_tokens >= self._max_tokens
            yield self._fake.chunk(min(num_tokens, self._max_tokens), "length" if is_last else None)
        yield self._fake.last_chunk(self._max_tokens)
        yield b"data: [DONE]\n\n"

    async def aclose(self) -> None:
        self._fake.num_open -= 1


class _Skip(selectors.DefaultSelector):
    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("every task waits for what never comes")
        self.now += timeout or 0.0
        return ready


class _VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Skips every wait: its time is exact, and costs none."""

    def __init__(self) -> None:
        self._skip = _Skip()
        super().__init__(self._skip)

    def time(self) -> float:
        return self._skip.now


def run_virtual(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=_VirtualTimeLoop) as runner:
        return runner.run(work)
