"""The form of refusals, on an app made like the router's."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi import HTTPException
from fastapi.testclient import TestClient
from ray.llm._internal.serve.core.configs.openai_api_models import OpenAIHTTPException
from ray.llm._internal.serve.core.ingress.ingress import init
from ray.serve.exceptions import BackPressureError
from ray.serve.llm.openai_api_models import ChatCompletionRequest

from specray.serve.http_errors import _refused_by_ours, add_error_handlers, refusing_when_full

MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def client() -> TestClient:
    app = add_error_handlers(init())

    @app.post("/v1/chat/completions")
    async def chat(body: ChatCompletionRequest) -> None:
        if body.model == "unknown":
            raise HTTPException(404, 'Could not find base model with ID "unknown".')
        if body.model == "refused":
            raise OpenAIHTTPException(400, "depth is -1", type="invalid_request_error")
        raise OpenAIHTTPException(503, "no replica")

    return TestClient(app)


def error_of(client: TestClient, status: int, **request: Any) -> dict[str, Any]:
    response = client.post("/v1/chat/completions", **request)
    assert response.status_code == status
    assert set(response.json()) == {"error"}
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def test_an_unknown_model(client: TestClient) -> None:
    error = error_of(client, 404, json={"model": "unknown", "messages": MESSAGES})
    assert "unknown" in error["message"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "model_not_found")


def test_an_unknown_path(client: TestClient) -> None:
    response = client.get("/v1/nothing")
    assert response.status_code == 404
    assert response.json()["error"]["message"] == "Not Found"


def test_refusals_are_told_in_their_own_words_only(client: TestClient) -> None:
    error = error_of(client, 400, json={"model": "refused", "messages": MESSAGES})
    assert (error["message"], error["type"]) == ("depth is -1", "invalid_request_error")
    error = error_of(client, 503, json={"model": "m", "messages": MESSAGES})
    assert (error["message"], error["type"]) == ("no replica", "server_error")


def test_who_finds_no_room_is_told_to_come_back() -> None:
    async def full() -> AsyncIterator[None]:
        yield None
        raise BackPressureError(4, 3, status_code=429, retry_after_s=7.5)

    async def ask() -> None:
        async for response in refusing_when_full(full()):
            assert response is None

    with pytest.raises(OpenAIHTTPException) as info:
        asyncio.run(ask())
    assert info.value.status_code == 429
    assert _refused_by_ours(None, info.value).headers["Retry-After"] == "8"
    assert "queue is full" in info.value.message


def test_a_server_that_is_not_there_says_when_to_ask_again(client: TestClient) -> None:
    response = client.post("/v1/chat/completions", json={"model": "m", "messages": MESSAGES})
    assert response.headers["Retry-After"] == "1"
    refused = {"model": "refused", "messages": MESSAGES}
    assert "Retry-After" not in client.post("/v1/chat/completions", json=refused).headers


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"model": "m"}, "messages"),
        ({"model": "m", "messages": MESSAGES, "temperature": "hot"}, "temperature"),
        ({"model": "m", "messages": MESSAGES, "stop": 3}, "stop"),
    ],
)
def test_a_faulty_field_is_named(client: TestClient, body: dict[str, Any], param: str) -> None:
    error = error_of(client, 400, json=body)
    assert error["param"] == param
    assert error["message"].startswith(f"{param}: ")


def test_bodies_that_are_no_json(client: TestClient) -> None:
    assert error_of(client, 400, content=b"{", headers={"content-type": "application/json"})
    error = error_of(client, 400, content=b'{"model": "m"}', headers={"content-type": "text/plain"})
    assert "Content-Type: application/json" in error["message"]
    assert error_of(client, 400, content=b"\xff", headers={"content-type": "application/json"})
