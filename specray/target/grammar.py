"""What a structured request's grammar says of proposed tokens."""

from typing import Any

from vllm.v1.request import Request


def allowed(manager: Any, request: Request, token_ids: list[int]) -> list[int]:
    """The tokens up to the first that the request's grammar forbids; vLLM insists on that.

    This cuts by the value of a token. It keeps the distribution only because structured requests
    verify point masses: a forbidden token would have been rejected anyway.

    Args:
        manager: vLLM's `StructuredOutputManager`.
        request: whose next tokens they may be.
        token_ids: proposed.
    """
    if not manager.should_advance(request):
        return token_ids
    structured = request.structured_output_request
    if structured is None or structured.grammar is None:
        return token_ids
    return list(structured.grammar.validate_tokens(token_ids))
