"""The span of one request, from which all others of its trace descend.

It is the router's, or by direct streaming that of the target's front.
"""

from types import TracebackType
from typing import Any

from fastapi import Request
from ray.llm._internal.serve.utils.server_utils import get_serve_request_id

from specray.observability.traces import Span, Tracer, active_traceparent

_HEADER = "traceparent"


class RequestSpan:
    """Entered when a request comes, left with its last chunk. Does nothing without a tracer.

    Its parent is the client's span, or that of Ray Serve's own tracing if that is on.
    """

    def __init__(self, tracer: Tracer | None, request: Request | None, call_method: str) -> None:
        self.traceparent = ""  # for the target; empty if nothing is traced
        self.forwarded = request  # what the target is to see of the client's request
        self._tracer = tracer
        self._method = call_method
        self._span: Span | None = None
        self._error = ""
        self._num_responses = 0

    def note(self, response: Any) -> None:
        """A chunk of the answer, or an error in its place."""
        self._num_responses += 1
        error = getattr(response, "error", None)
        if error is not None:
            self.fail(str(getattr(error, "message", error)))

    def fail(self, message: str) -> None:
        """The answer is an error, or ends in one."""
        self._error = message

    def __enter__(self) -> "RequestSpan":
        if self._tracer is not None:
            headers = self.forwarded.headers if self.forwarded is not None else {}
            parent = active_traceparent() or headers.get(_HEADER, "")
            self._span = self._tracer.start("specray.request", parent)
            self.traceparent = self._span.traceparent
            if self.forwarded is not None:
                self.forwarded = _with_parent(self.forwarded, self.traceparent)
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        if self._span is None:
            return
        if isinstance(error, Exception) and not self._error:  # a client that leaves is no error
            self._error = f"{type(error).__name__}: {error}"
        attributes = {
            "specray.request_id": get_serve_request_id() or "",
            "specray.method": self._method,
            "specray.responses": self._num_responses,
        }
        self._span.end(attributes, self._error)


def _with_parent(request: Request, traceparent: str) -> Request:
    """The request with our span as its parent, so that vLLM's own spans, if on, join the trace."""
    name = _HEADER.encode()
    headers = [(key, value) for key, value in request.scope["headers"] if key.lower() != name]
    headers.append((name, traceparent.encode()))
    return Request(dict(request.scope) | {"headers": headers}, request.receive)
