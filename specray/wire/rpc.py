"""Method names, metadata and options that both ends of the protocol agree on."""

import os
from typing import Final

from specray.errors import StartupError
from specray.wire import speculation_pb2 as pb

PROTOCOL_KEY: Final = "specray-protocol"
ROUTER_KEY: Final = "specray-router"
TOKEN_KEY: Final = "specray-token"
TOKEN_VARIABLE: Final = "SPECRAY_STREAM_TOKEN"
PROTOCOL_VERSION: Final = "1"

DRAFT_SERVICE: Final = pb.DESCRIPTOR.services_by_name["Draft"].full_name
TARGET_SERVICE: Final = pb.DESCRIPTOR.services_by_name["Target"].full_name

SPECULATE: Final = "Speculate"
ATTACH: Final = "Attach"
CONFIGURE: Final = "Configure"
GET_STATS: Final = "GetStats"

# Frames of more than one item stay far below: see `split`.
MAX_SESSION_FRAME_BYTES: Final = 64 << 20  # the longest prompt of one session
MAX_PROPOSAL_FRAME_BYTES: Final = 16 << 20
_COMMON_OPTIONS = (
    ("grpc.max_send_message_length", MAX_SESSION_FRAME_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
_SERVER_OPTIONS = (
    *_COMMON_OPTIONS,
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
)
_CHANNEL_OPTIONS = (
    *_COMMON_OPTIONS,
    ("grpc.enable_http_proxy", 0),  # the environment's proxy is not for tokens
    ("grpc.use_local_subchannel_pool", 1),  # a new channel dials at once, whatever others saw
    ("grpc.enable_retries", 0),
)


def stream_token() -> str:
    """The secret that both ends of a call must have, from the environment; empty for none.

    Raises:
        StartupError: it holds what a header can't.
    """
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not (token.isascii() and token.isprintable()):
        raise StartupError(f"{TOKEN_VARIABLE} must be printable ASCII")
    return token


def credentials() -> tuple[tuple[str, str], ...]:
    """Metadata of every call: the protocol's version, and the token if there is one."""
    token = stream_token()
    return ((PROTOCOL_KEY, PROTOCOL_VERSION), *([(TOKEN_KEY, token)] if token else []))


def channel_options(max_receive_bytes: int) -> tuple[tuple[str, int], ...]:
    """gRPC's options of a connection that takes messages up to this size."""
    return *_CHANNEL_OPTIONS, ("grpc.max_receive_message_length", max_receive_bytes)


def server_options(max_receive_bytes: int) -> tuple[tuple[str, int], ...]:
    """gRPC's options of a server that takes messages up to this size."""
    return *_SERVER_OPTIONS, ("grpc.max_receive_message_length", max_receive_bytes)


def method_path(service: str, method: str) -> str:
    """The HTTP/2 path of a method."""
    return f"/{service}/{method}"
