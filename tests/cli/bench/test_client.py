import asyncio
import socket
from dataclasses import replace
from typing import Any

import pytest

from specray.cli.bench.client import Endpoint, Request
from specray.errors import StartupError
from tests.cli.fake_openai import FakeOpenAI, run_virtual

REQUEST = Request("Why?", temperature=0.0, max_tokens=7, seed=3, ignore_eos=False)


async def stream(fake: FakeOpenAI, request: Request = REQUEST) -> list[int]:
    endpoint = Endpoint("http://fake", fake)
    heard: list[int] = []
    try:
        await endpoint.start()
        await endpoint.complete(request, heard.append)
    finally:
        await endpoint.close()
    return heard


def test_a_chunk_counts_as_the_tokens_it_holds() -> None:
    assert run_virtual(stream(FakeOpenAI(tokens_on=3))) == [3, 3, 1]


def test_usage_is_asked_for_with_every_chunk() -> None:
    fake = FakeOpenAI()

    run_virtual(stream(fake))

    (body,) = fake.bodies
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert (body["ignore_eos"], body["max_tokens"], body["model"]) == (False, 7, "fake-model")


def test_a_service_without_continuous_usage_is_refused() -> None:
    def alter(chunk: dict[str, Any]) -> None:
        chunk["usage"] = None

    with pytest.raises(StartupError, match="continuous_usage_stats"):
        run_virtual(stream(FakeOpenAI(alter=alter)))


def test_an_error_in_the_middle_of_an_answer_is_reported() -> None:
    def alter(chunk: dict[str, Any]) -> None:
        if chunk["usage"]["completion_tokens"]:
            chunk["error"] = {"message": "the engine died"}

    with pytest.raises(StartupError, match="the engine died"):
        run_virtual(stream(FakeOpenAI(alter=alter)))


def test_a_model_ends_its_answer_unless_the_length_is_given() -> None:
    def alter(chunk: dict[str, Any]) -> None:
        chunk["usage"]["completion_tokens"] = min(chunk["usage"]["completion_tokens"], 4)

    fake = FakeOpenAI(alter=alter)
    assert sum(run_virtual(stream(fake))) == 4
    with pytest.raises(StartupError, match="4 of 7 tokens"):
        run_virtual(stream(fake, replace(REQUEST, ignore_eos=True)))
    assert fake.bodies[-1]["ignore_eos"] is True


@pytest.mark.parametrize(
    ("num_tokens", "finish_reason", "reason"),
    [
        (4, None, "broke off an answer after 4 tokens"),
        (4, "abort", "broke off an answer after 4 tokens"),
        (0, "stop", "gave an answer without tokens"),
    ],
)
def test_an_answer_that_is_broken_off_or_empty_is_no_short_one(
    num_tokens: int, finish_reason: str | None, reason: str
) -> None:
    def alter(chunk: dict[str, Any]) -> None:
        chunk["usage"]["completion_tokens"] = min(chunk["usage"]["completion_tokens"], num_tokens)
        for choice in chunk["choices"]:
            choice["finish_reason"] = finish_reason

    with pytest.raises(StartupError, match=reason):
        run_virtual(stream(FakeOpenAI(alter=alter)))


def test_a_refusal_is_reported_with_its_status() -> None:
    with pytest.raises(StartupError, match="answered 503: no room"):
        run_virtual(stream(FakeOpenAI(status=503)))


def test_a_refused_answer_is_reported_with_its_text() -> None:
    async def refuse() -> None:
        endpoint = Endpoint("http://fake", FakeOpenAI(status=429))
        try:
            await endpoint.complete(REQUEST, lambda _: None)
        finally:
            await endpoint.close()

    with pytest.raises(StartupError, match="answered 429: no room"):
        run_virtual(refuse())


def test_an_unreachable_service_is_reported() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"

        async def start() -> None:
            endpoint = Endpoint(url)
            try:
                await endpoint.start()
            finally:
                await endpoint.close()

        with pytest.raises(StartupError, match="can't be reached"):
            asyncio.run(start())
