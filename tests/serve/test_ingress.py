import asyncio
import json
from types import SimpleNamespace
from typing import Any

from fastapi.responses import JSONResponse
from ray.llm._internal.serve.core.configs.openai_api_models import OpenAIHTTPException

from specray.serve.ingress import Router


def responded(route: str, **routes: Any) -> JSONResponse:
    response: JSONResponse = asyncio.run(Router.respond(SimpleNamespace(**routes), route))
    return response


def test_a_target_is_given_the_answer_of_a_route() -> None:
    async def health() -> JSONResponse:
        return JSONResponse({"status": "warming up"}, status_code=503)

    answer = responded("health", health=health)

    assert answer.status_code == 503
    assert json.loads(answer.body) == {"status": "warming up"}


def test_a_refusal_is_an_answer_too() -> None:
    """The exception itself does not survive the way to another process."""

    async def speculation() -> JSONResponse:
        raise OpenAIHTTPException(status_code=503, message="away", type="service_unavailable")

    answer = responded("speculation", speculation=speculation)

    assert answer.status_code == 503
    assert json.loads(answer.body)["error"]["message"] == "away"
    assert answer.headers["retry-after"] == "1"
