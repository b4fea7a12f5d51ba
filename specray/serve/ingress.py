"""The router deployment: the OpenAI API in front, the relay of the speculation streams behind."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, StreamingResponse
from ray import serve
from ray.exceptions import RayError
from ray.llm._internal.serve.core.configs.openai_api_models import OpenAIHTTPException
from ray.llm._internal.serve.utils.server_utils import get_serve_request_id
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from ray.serve.llm.ingress import OpenAiIngress
from ray.serve.llm.openai_api_models import ChatCompletionRequest, CompletionRequest

from specray.config import ObservabilityConfig, SpeculationConfig
from specray.observability.traces import make_tracer
from specray.router.relay import Relay
from specray.serve.explanation import Explanation
from specray.serve.http_errors import refused, refusing_when_full
from specray.serve.logs import join_serve
from specray.serve.membership import Member, View, beat, say_goodbye
from specray.serve.metrics import RelayMetrics
from specray.serve.naming import named
from specray.serve.request_span import RequestSpan
from specray.serve.tenants import TenantCounter, tenant_of
from specray.serve.ui.answer import Question, chat_request, events
from specray.serve.ui.status import StatusBoard

logger = logging.getLogger(__name__)

_WARM_UP_TOKENS = 24
_SERVERS_FAULT = 500  # HTTP statuses from here on
_WARM_UP_RETRY_S = 1.0


class Router(OpenAiIngress):
    """Ray Serve LLM's ingress; names itself in each request, so that the target finds its stream.

    Serve picks the target, the relay picks the draft.
    """

    async def __init__(  # type: ignore[misc]  # Serve awaits constructors
        self,
        llm_deployments: dict[str, DeploymentHandle | str],
        *,
        controller: DeploymentHandle,
        drafts: list[DeploymentHandle],
        observability: ObservabilityConfig,
        speculation: SpeculationConfig,
        tenant_header: str,
        **kwargs: Any,
    ) -> None:
        """Takes the deployments that it works with; those not named here are its base's.

        Args:
            llm_deployments: targets by model; by name where they bind the router, and not it them.
            controller: hears of it, and says who is there.
            drafts: named so that Serve deploys them, if there is a pool; reached by streams only.
            observability: where its spans go.
            speculation: of its streams.
            tenant_header: tells whom a request is for.
            **kwargs: the base's.
        """
        join_serve()
        targets = {
            model: serve.get_deployment_handle(target) if isinstance(target, str) else target
            for model, target in llm_deployments.items()
        }
        super().__init__(targets, **kwargs)
        self._router_id = serve.get_replica_context().replica_id.unique_id
        self._tracer = make_tracer(observability, "router", self._router_id)
        self._relay = Relay(self._router_id, speculation.stall_timeout_s, speculation.data_path)
        self._relay.start()
        self._metrics = RelayMetrics(has_drafts=bool(drafts))
        self._status = StatusBoard(self._router_id, list(self._model_cards))
        self._controller = controller
        self._member = Member("router", self._router_id)
        self._tenant_header = tenant_header
        self._tenants = TenantCounter(time.monotonic)
        self._explanation = Explanation(controller)
        self._is_warm = False
        self._view: View | None = None
        self._tasks = [
            asyncio.create_task(
                beat(
                    lambda held: controller.heartbeat.remote(
                        self._member, self._tenants.report(), held
                    ),
                    self._follow,
                )
            ),
            asyncio.create_task(self._warm_up()),
        ]

    async def health(self) -> JSONResponse:
        """200 once the target has answered a request of our own; 503 until then."""
        if self._is_warm:
            return JSONResponse({"status": "ok"})
        return JSONResponse({"status": "warming up"}, status_code=503, headers={"Retry-After": "1"})

    async def speculation(self) -> JSONResponse:
        """What replicas report, what the controller has decided, and why."""
        return JSONResponse(await self._explanation.read())

    async def respond(self, route: str) -> JSONResponse:
        """What `health`, `speculation` or `ui_status` answers, for a target that was asked."""
        try:
            response: JSONResponse = await getattr(self, route)()
        except OpenAIHTTPException as error:
            response = refused(error)
        return response

    async def ui_status(self) -> JSONResponse:
        """What the page at `/ui` shows of the service."""
        return JSONResponse(await self._status.read(self._view, self._relay.snapshot))

    async def ui_answer(self, question: Question) -> StreamingResponse:
        """The page's prompt box: text and what a draft guessed of it, from one router."""
        model = await self._get_model_id(question.model or next(iter(self._model_cards)))
        return StreamingResponse(self.ui_events(question, model), media_type="text/event-stream")

    async def ui_events(
        self, question: Question, model: str | None = None
    ) -> AsyncGenerator[str, None]:
        """What `ui_answer` streams; of the only model if none is named."""
        known = model or next(iter(self._model_cards))
        body = ChatCompletionRequest.model_validate(chat_request(question, known))
        with self._relay.watch(get_serve_request_id() or "") as watch:
            async for event in events(self._get_response(body=body, call_method="chat"), watch):
                yield event

    async def __del__(self) -> None:
        for task in self._tasks:
            task.cancel()
        await say_goodbye(lambda: self._controller.leave.remote(self._member))
        self._relay.stop()
        if self._tracer is not None:
            self._tracer.close()

    async def _follow(self, view: View) -> None:
        # A controller that has just been replaced shall not make us hang up on everyone.
        self._view = view.completed_by(self._view)
        self._relay.update_replicas(self._view.targets, self._view.drafts)
        self._metrics.publish(await self._relay.snapshot())

    async def _warm_up(self) -> None:
        while not self._is_warm:
            try:
                self._is_warm = all([await self._answers(name) for name in self._model_cards])
            except (RayError, RayServeException, OpenAIHTTPException) as error:
                logger.warning("warm-up: the target does not answer yet: %s", error)
            except Exception:  # not ready is what `/health` says until a request has gone well
                logger.exception("warm-up failed; trying again")
            if not self._is_warm:
                await asyncio.sleep(_WARM_UP_RETRY_S)

    async def _answers(self, model_id: str) -> bool:
        """Whether a target answers; what it refuses as the client's fault is an answer, too."""
        body = CompletionRequest(
            model=model_id,
            prompt="1 2 3 4 1 2 3 4 1 2 3 4",
            max_tokens=_WARM_UP_TOKENS,
            temperature=0.0,
        )
        async for answer in self._get_response(body=body, call_method="completions"):
            if (error := getattr(answer, "error", None)) is not None:
                logger.warning("warm-up of %s: %s", model_id, error.message)
                return bool(error.code < _SERVERS_FAULT)
        return True

    async def _get_response(
        self, *, body: Any, call_method: str, raw_request: Request | None = None
    ) -> AsyncGenerator[Any, None]:
        headers = raw_request.headers if raw_request is not None else {}
        tenant = tenant_of(headers, self._tenant_header)
        self._tenants.count(tenant)
        with RequestSpan(self._tracer, raw_request, call_method) as span:
            if hasattr(body, "vllm_xargs"):
                body.vllm_xargs = named(
                    body.vllm_xargs,
                    self._router_id,
                    request_id=get_serve_request_id() or "",
                    traceparent=span.traceparent,
                    tenant=tenant,
                )
            responses = super()._get_response(
                body=body, call_method=call_method, raw_request=span.forwarded
            )
            async for response in refusing_when_full(responses):
                span.note(response)
                yield response
