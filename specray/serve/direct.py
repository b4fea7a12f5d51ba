"""Direct streaming: clients' streams come from the targets, past Serve's proxy and the routers.

Ray Serve LLM 2.60 has HAProxy hand each request to a replica that Ray's own `LLMRouter` chooses
(`RAY_SERVE_ENABLE_HA_PROXY` and `RAY_SERVE_LLM_ENABLE_DIRECT_STREAMING`). A token then crosses no
process between the target's and HAProxy. What the router does to requests that pass it is done
here; it remains the relay of drafts' proposals, and says how the service is.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from ray import serve
from ray.exceptions import RayError
from ray.llm._internal.serve.constants import RAY_SERVE_LLM_ENABLE_DIRECT_STREAMING
from ray.llm._internal.serve.core.configs.openai_api_models import OpenAIHTTPException
from ray.llm._internal.serve.core.server.llm_server import _add_middleware_to_built_app
from ray.llm._internal.serve.utils.server_utils import get_serve_request_id
from ray.serve._private.constants import RAY_SERVE_INGRESS_REQUEST_ROUTER_FORWARD_BODY
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from ray.serve.llm import LLMConfig
from ray.serve.llm.deployment import LLMServer

from specray.config import ObservabilityConfig
from specray.errors import InvalidConfigError
from specray.observability.traces import make_tracer
from specray.serve.http_errors import add_error_handlers, refused
from specray.serve.naming import named
from specray.serve.request_span import RequestSpan
from specray.serve.settings import AppArgs
from specray.serve.tenants import TenantCounter, tenant_of
from specray.serve.ui import routes as ui
from specray.serve.ui.answer import Question
from specray.target.names import ANY_ROUTER

_OK, _REFUSED = 200, 400  # HTTP statuses; from the latter on
_OPERATORS = ("/scale_elastic_ep", "/is_scaling_elastic_ep")  # vLLM's, not for clients
_PATIENCE_S = 5.0  # with a router

_Send = Callable[[dict[str, Any]], Awaitable[None]]

_names: ContextVar[Mapping[str, str] | None] = ContextVar("names", default=None)


def is_on() -> bool:
    """Whether applications are to be built for it.

    By Ray Serve LLM's own switch, as it holds for the whole cluster, HAProxy included.
    """
    return bool(RAY_SERVE_LLM_ENABLE_DIRECT_STREAMING)


def check(args: AppArgs) -> None:
    """See that an application can be served so.

    Raises:
        InvalidConfigError: naming the field.
    """
    if args.more_targets:
        raise InvalidConfigError(
            "more_targets: direct streaming serves one model; deploy an application for each, or "
            "leave out --direct-streaming (RAY_SERVE_LLM_ENABLE_DIRECT_STREAMING)"
        )
    if "autoscaling_config" in args.router.deployment_config:
        raise InvalidConfigError(
            "router.deployment_config.autoscaling_config: by direct streaming requests pass the "
            "routers by, so that Serve can't scale them; set num_replicas"
        )
    if args.target.lora_config is not None and not RAY_SERVE_INGRESS_REQUEST_ROUTER_FORWARD_BODY:
        raise InvalidConfigError(
            "target.lora_config: by direct streaming Ray needs "
            "RAY_SERVE_INGRESS_REQUEST_ROUTER_FORWARD_BODY=1 to choose an adapter"
        )


def naming(generate: Callable[..., AsyncIterator[Any]]) -> Callable[..., AsyncIterator[Any]]:
    """vLLM's `EngineClient.generate`, with the names of the request that it is called for.

    They are those of the HTTP request that is being answered. Calls through a deployment's handle
    come from a router, which has named them.

    Raises:
        ValueError: the request asks for a depth that is none; when it is called.
    """

    def generate_named(prompt: Any, sampling_params: Any, *args: Any, **kwargs: Any) -> Any:
        names = _names.get()
        if names is not None:
            try:
                extra_args = named(sampling_params.extra_args, ANY_ROUTER, **names)
            except OpenAIHTTPException as error:
                raise ValueError(error.message) from None  # vLLM's handlers take it for a 400
            sampling_params.extra_args = extra_args
        return generate(prompt, sampling_params, *args, **kwargs)

    return generate_named


@dataclass(frozen=True, slots=True)
class FrontConfig:
    """What a front needs, made where the application is built."""

    router: DeploymentHandle  # answers for the whole service
    tenant_header: str  # tells whom a request is for
    has_ui: bool  # whether there is a page for people
    observability: ObservabilityConfig


class Front:
    """What stands before vLLM's HTTP application on a target."""

    def __init__(self, config: FrontConfig, instance: str) -> None:
        """Takes its options, and what tells it from other replicas' fronts."""
        self._config = config
        self._tracer = make_tracer(config.observability, "front", instance)
        self._tenants = TenantCounter(time.monotonic)
        self._is_warm = False  # whether the service has answered a request of its own

    def close(self) -> None:
        """Send the last spans."""
        if self._tracer is not None:
            self._tracer.close()

    def put_before(self, app: FastAPI) -> FastAPI:
        """The application, with names for its requests, our errors' form, and the router's routes.

        Args:
            app: vLLM's, already built; its own `/health` gives way.
        """
        add_error_handlers(app)
        ours = FastAPI(openapi_url=None)  # without documents of its own
        ours.add_api_route("/health", self._health)
        if self._config.has_ui:
            ui.add_page(ours)
            ours.add_api_route("/speculation", self._speculation)
            ours.add_api_route("/ui/status", self._status)
            ours.add_api_route("/ui/answer", self._answer, methods=["POST"])
        theirs = [r for r in app.router.routes if getattr(r, "path", "") not in _OPERATORS]
        app.router.routes[:] = ours.router.routes + theirs
        _add_middleware_to_built_app(app, _Naming, front=self)
        return app

    def tenants(self) -> tuple[tuple[str, float], ...]:
        """Who asks most of those whose requests came this way, and how often in a second."""
        return self._tenants.report().tenants

    @contextmanager
    def named(self, request: Request) -> Iterator[RequestSpan]:
        """Around a request's answer: vLLM's engine learns whose it is; its span takes as long."""
        tenant = tenant_of(request.headers, self._config.tenant_header)
        self._tenants.count(tenant)
        with RequestSpan(self._tracer, request, request.url.path) as span:
            names = {
                "request_id": get_serve_request_id() or "",
                "traceparent": span.traceparent,
                "tenant": tenant,
            }
            token = _names.set(names)
            try:
                yield span
            finally:
                _names.reset(token)

    async def _health(self) -> Response:
        """The router's answer until it is good: what is warm serves on without a router."""
        if not self._is_warm:
            answer = await self._ask("health")
            self._is_warm = answer.status_code == _OK
            return answer
        return JSONResponse({"status": "ok"})

    async def _speculation(self) -> Response:
        return await self._ask("speculation")

    async def _status(self) -> Response:
        return await self._ask("ui_status")

    async def _answer(self, question: Question) -> StreamingResponse:
        events = self._config.router.options(stream=True).ui_events.remote(question)
        return StreamingResponse(events, media_type="text/event-stream")

    async def _ask(self, method: str) -> Response:
        asked = self._config.router.respond.remote(method)
        try:
            response: Response = await asyncio.wait_for(asked, _PATIENCE_S)
        except (RayError, RayServeException, TimeoutError):
            message = "the router is being replaced; requests go on without drafts"
            return refused(
                OpenAIHTTPException(status_code=503, message=message, type="service_unavailable")
            )
        return response


class _Naming:
    """ASGI middleware: names each request for the model."""

    def __init__(self, app: Any, front: Front) -> None:
        self._app = app
        self._front = front

    async def __call__(self, scope: dict[str, Any], receive: Any, send: _Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        with self._front.named(Request(scope, receive)) as span:

            async def send_noted(message: dict[str, Any]) -> None:
                span.note(message)
                if message.get("status", 0) >= _REFUSED:
                    span.fail(f"HTTP {message['status']}")
                await send(message)

            forwarded = span.forwarded.scope if span.forwarded is not None else scope
            await self._app(forwarded, receive, send_noted)


class PlainServer(LLMServer):
    """A target without speculation, behind a front."""

    async def __init__(self, llm_config: LLMConfig, front: FrontConfig) -> None:  # type: ignore[misc]
        self._front = Front(front, serve.get_replica_context().replica_id.unique_id)
        await super().__init__(llm_config)

    async def __serve_build_asgi_app__(self) -> FastAPI:
        return self._front.put_before(await super().__serve_build_asgi_app__())

    async def __del__(self) -> None:
        self._front.close()
        await super().__del__()
