"""What a request's extra arguments tell the target of it; whatever a client put there is lost."""

from typing import Any

from ray.llm._internal.serve.core.configs.openai_api_models import OpenAIHTTPException

from specray.config import MAX_DEPTH
from specray.target.names import DEPTH_ARG, REQUEST_ARG, ROUTER_ARG, TENANT_ARG, TRACE_ARG


def named(
    xargs: dict[str, Any] | None,
    router: str,
    *,
    request_id: str = "",
    traceparent: str = "",
    tenant: str = "",
) -> dict[str, Any]:
    """A request's extra arguments with its names.

    Args:
        xargs: the client's (`vllm_xargs`); not changed.
        router: whose drafts it is for, or `ANY_ROUTER`.
        request_id: Serve's, for logs and traces.
        traceparent: of the span that its own are part of.
        tenant: whom it is for.

    Raises:
        OpenAIHTTPException: 400 if the depth that the request asks for is no number of tokens.
    """
    given = xargs or {}
    depth = given.get(DEPTH_ARG, 0)
    if not isinstance(depth, int) or isinstance(depth, bool) or depth < 0:
        raise OpenAIHTTPException(
            status_code=400,
            message=f"vllm_xargs.{DEPTH_ARG} is {depth!r}; give an integer, 0 for no speculation",
            type="invalid_request_error",
        )
    capped = {DEPTH_ARG: min(depth, MAX_DEPTH)} if DEPTH_ARG in given else {}
    names = {
        ROUTER_ARG: router,
        REQUEST_ARG: request_id,
        TRACE_ARG: traceparent,
        TENANT_ARG: tenant,
    }
    return {**given, **capped, **names}
