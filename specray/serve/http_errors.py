"""Errors of the HTTP API in OpenAI's form: `{"error": {message, type, param, code}}`.

Ray Serve LLM's ingress answers some in FastAPI's form, and wraps others in its own words.
"""

import math
from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi import HTTPException as FastAPIHTTPException
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from ray.llm._internal.serve.core.configs.openai_api_models import OpenAIHTTPException
from ray.serve.exceptions import BackPressureError
from starlette.exceptions import HTTPException

_BAD_REQUEST, _NOT_FOUND = 400, 404
_LATER = (429, 503)  # statuses with a Retry-After
_OF_CLIENT = "invalid_request_error"


def add_error_handlers(app: FastAPI) -> FastAPI:
    """The app, answering every refused request in OpenAI's form."""
    for kind in (HTTPException, FastAPIHTTPException):  # each, as vLLM's application has its own
        app.add_exception_handler(kind, _refused)
    app.add_exception_handler(OpenAIHTTPException, _refused_by_ours)
    app.add_exception_handler(RequestValidationError, _malformed)
    return app


async def refusing_when_full(responses: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """Responses, as long as there is room for their request (`max_queued_requests`).

    Raises:
        OpenAIHTTPException: there is none; with the status of Serve's `backpressure_config`.
    """
    try:
        async for response in responses:
            yield response
    except BackPressureError as error:
        refusal = OpenAIHTTPException(
            status_code=error.status_code,
            message="all targets are busy, and their queue is full; try again later",
            internal_message=str(error),
        )
        refusal.retry_after_s = error.retry_after_s
        raise refusal from None


def _refused(_: Request, error: Any) -> JSONResponse:
    """An unknown path or model."""
    code = "model_not_found" if _is_about_a_model(error) else None
    return _answer(error.status_code, str(error.detail), code=code)


def _refused_by_ours(_: Request, error: Any) -> JSONResponse:
    return refused(error)


def refused(error: Any) -> JSONResponse:
    """What the engine or the router refuses, with the engine's own type of error."""
    is_named = error.type not in ("Unknown", OpenAIHTTPException.__name__)
    kind = error.type if is_named else None
    after_s = getattr(error, "retry_after_s", None) or 1
    return _answer(error.status_code, error.message, kind=kind, after_s=after_s)


def _malformed(_: Request, error: Any) -> JSONResponse:
    """A body that is no JSON, or not what the endpoint takes; all faults of the first field."""
    faults = error.errors()
    first = faults[0] if faults else {"loc": (), "msg": "invalid request"}
    if isinstance(first.get("input"), bytes):
        return _answer(
            _BAD_REQUEST, "the body was not read as JSON: send Content-Type: application/json"
        )
    field = _field(first["loc"])
    messages = dict.fromkeys(fault["msg"] for fault in faults if _field(fault["loc"]) == field)
    place = f"{field}: " if field else ""
    return _answer(_BAD_REQUEST, place + "; or: ".join(messages), param=field)


def _field(place: Sequence[Any]) -> str | None:
    """The body's top-level field; below it stand names of pydantic's union branches too."""
    return str(place[1]) if len(place) > 1 and isinstance(place[1], str) else None


def _is_about_a_model(error: HTTPException) -> bool:
    return error.status_code == _NOT_FOUND and "model" in str(error.detail)


def _answer(
    status: int,
    message: str,
    *,
    kind: str | None = None,
    param: str | None = None,
    code: str | int | None = None,
    after_s: float = 1,
) -> JSONResponse:
    default = _OF_CLIENT if status < 500 else "server_error"
    error = {"message": message, "type": kind or default, "param": param, "code": code or status}
    headers = {"Retry-After": str(math.ceil(after_s))} if status in _LATER else None
    return JSONResponse({"error": error}, status_code=status, headers=headers)
