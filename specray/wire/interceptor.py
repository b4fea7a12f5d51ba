"""One gate for every call: versions and tokens are checked, exceptions become gRPC statuses."""

import hmac
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from specray.errors import ProtocolError, SpecrayError
from specray.wire.outbox import QueueFullError
from specray.wire.rpc import (
    PROTOCOL_KEY,
    PROTOCOL_VERSION,
    ROUTER_KEY,
    TOKEN_KEY,
    TOKEN_VARIABLE,
    stream_token,
)

_log = logging.getLogger(__name__)

_Behaviour = Callable[[Any, Any], Awaitable[Any]]


class _VersionMismatchError(SpecrayError):
    """The peer speaks another major version (FAILED_PRECONDITION)."""


class _UnauthenticatedError(SpecrayError):
    """The peer does not have our token (UNAUTHENTICATED)."""


class Gate(grpc.aio.ServerInterceptor):
    """The server's only interceptor."""

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        """Wrap the method's behaviour; unknown methods stay None, which gRPC answers itself."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        metadata = dict(handler_call_details.invocation_metadata)
        if handler.request_streaming:
            guarded = _guard(handler.stream_stream, metadata, is_stream=True)
            return grpc.stream_stream_rpc_method_handler(guarded)
        guarded = _guard(handler.unary_unary, metadata, is_stream=False)
        return grpc.unary_unary_rpc_method_handler(guarded)


def _guard(behaviour: _Behaviour, metadata: dict[str, Any], is_stream: bool) -> _Behaviour:
    async def guarded(request: Any, context: Any) -> Any:
        try:
            _check(metadata, is_stream)
            return await behaviour(request, context)
        except Exception as error:  # noqa: BLE001  # the one place where every exception becomes a status
            status, details = _status(error)
            if status is grpc.StatusCode.INTERNAL:
                _log.exception("A call from %s failed", context.peer())
        return await context.abort(status, details)

    return guarded


def _check(metadata: dict[str, Any], is_stream: bool) -> None:
    version = str(metadata.get(PROTOCOL_KEY, "none"))
    if version.split(".")[0] != PROTOCOL_VERSION:
        raise _VersionMismatchError(
            f"you speak specray protocol {version}, this server speaks {PROTOCOL_VERSION}; "
            f"deploy the same release on both sides (metadata key {PROTOCOL_KEY})"
        )
    token = stream_token()
    if token and not hmac.compare_digest(str(metadata.get(TOKEN_KEY, "")).encode(), token.encode()):
        raise _UnauthenticatedError(
            f"this server wants the token of its {TOKEN_VARIABLE} in the metadata key {TOKEN_KEY}; "
            "give all replicas the same"
        )
    if is_stream and not metadata.get(ROUTER_KEY):
        raise ProtocolError(f"a stream must name its router in the metadata key {ROUTER_KEY}")


def _status(error: Exception) -> tuple[grpc.StatusCode, str]:
    if isinstance(error, ProtocolError):
        return grpc.StatusCode.INVALID_ARGUMENT, str(error)
    if isinstance(error, QueueFullError):
        return grpc.StatusCode.RESOURCE_EXHAUSTED, str(error)
    if isinstance(error, _UnauthenticatedError):
        return grpc.StatusCode.UNAUTHENTICATED, str(error)
    if isinstance(error, SpecrayError):
        return grpc.StatusCode.FAILED_PRECONDITION, str(error)
    return grpc.StatusCode.INTERNAL, f"{type(error).__name__}: {error}"
