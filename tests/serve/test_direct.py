import asyncio
from collections.abc import AsyncIterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from fastapi.testclient import TestClient
from ray.exceptions import RayError

from specray.config import MAX_DEPTH, ObservabilityConfig
from specray.errors import InvalidConfigError
from specray.serve import direct
from specray.serve.direct import Front, FrontConfig, naming
from specray.target.names import ANY_ROUTER, DEPTH_ARG, ROUTER_ARG, TENANT_ARG


class FakeRouter:
    """A handle whose calls answer at once."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.status = 200
        self.is_away = False

    @property
    def respond(self) -> Any:
        return SimpleNamespace(remote=self._respond)

    def options(self, *, stream: bool) -> Any:
        assert stream
        return SimpleNamespace(ui_events=SimpleNamespace(remote=self._events))

    async def _respond(self, route: str) -> JSONResponse:
        self.asked.append(route)
        if self.is_away:
            raise RayError
        return JSONResponse({"route": route}, status_code=self.status)

    async def _events(self, question: Any) -> AsyncIterator[str]:
        yield f"data: {question.prompt}\n\n"


class Engine:
    """What vLLM's application calls; notes what it is given."""

    def __init__(self) -> None:
        self.given: list[dict[str, Any] | None] = []
        self.generate = naming(self._generate)

    async def _generate(self, prompt: str, params: Any) -> AsyncIterator[str]:
        self.given.append(params.extra_args)
        yield prompt


@pytest.fixture
def router() -> FakeRouter:
    return FakeRouter()


@pytest.fixture
def engine() -> Engine:
    return Engine()


def vllm_app(engine: Engine) -> FastAPI:
    app = FastAPI()

    @app.get("/health")
    async def health() -> str:
        return "vLLM's"

    @app.post("/v1/completions")
    async def completions(request: Request) -> list[str]:
        params = SimpleNamespace(extra_args=await request.json())
        return [text async for text in engine.generate("text", params)]

    @app.post("/scale_elastic_ep")
    async def scale() -> None:
        """For operators."""

    @app.exception_handler(ValueError)
    async def bad_request(_: Request, error: ValueError) -> JSONResponse:
        return JSONResponse({"error": {"message": str(error)}}, status_code=400)

    @app.exception_handler(HTTPException)
    async def refused(_: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse({"theirs": error.detail}, status_code=error.status_code)

    @app.get("/v1/models/{model}")
    async def model(model: str) -> None:
        raise HTTPException(status_code=404, detail=f"no model {model}")

    app.middleware_stack = app.build_middleware_stack()  # as vLLM's is
    return app


def front(router: FakeRouter, *, has_ui: bool = True) -> Front:
    handle: Any = router
    return Front(FrontConfig(handle, "x-tenant", has_ui, ObservabilityConfig()), "f1")


@pytest.fixture
def client(router: FakeRouter, engine: Engine) -> TestClient:
    app = front(router).put_before(vllm_app(engine))
    return TestClient(app, raise_server_exceptions=False)


def test_a_request_is_for_any_router_and_for_whom_its_header_says(
    client: TestClient, engine: Engine
) -> None:
    answer = client.post("/v1/completions", json={"theirs": 1}, headers={"x-tenant": "them"})

    assert answer.json() == ["text"]
    (given,) = engine.given
    assert given is not None
    assert (given["theirs"], given[ROUTER_ARG], given[TENANT_ARG]) == (1, ANY_ROUTER, "them")


def test_no_client_chooses_a_router_or_is_another(client: TestClient, engine: Engine) -> None:
    client.post("/v1/completions", json={ROUTER_ARG: "r1", TENANT_ARG: "them"})

    (given,) = engine.given
    assert given is not None
    assert (given[ROUTER_ARG], given[TENANT_ARG]) == (ANY_ROUTER, "")


def test_a_depth_is_capped_and_a_faulty_one_refused(client: TestClient, engine: Engine) -> None:
    client.post("/v1/completions", json={DEPTH_ARG: 10**9})
    answer = client.post("/v1/completions", json={DEPTH_ARG: "many"})

    (given,) = engine.given
    assert given is not None
    assert given[DEPTH_ARG] == MAX_DEPTH
    assert answer.status_code == 400
    assert DEPTH_ARG in answer.text


def test_what_comes_through_a_handle_keeps_the_names_its_router_gave(engine: Engine) -> None:
    async def generate() -> None:
        params = SimpleNamespace(extra_args={ROUTER_ARG: "r1"})
        async for _ in engine.generate("text", params):
            pass

    asyncio.run(generate())

    assert engine.given == [{ROUTER_ARG: "r1"}]


def test_names_do_not_outlive_their_request(router: FakeRouter, engine: Engine) -> None:
    """Not even in the task that answered it."""

    async def ask() -> None:
        app = front(router).put_before(vllm_app(engine))
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://test"
        ) as client:
            await client.post("/v1/completions", json={}, headers={"x-tenant": "them"})
        async for _ in engine.generate("text", SimpleNamespace(extra_args={ROUTER_ARG: "r1"})):
            pass

    asyncio.run(ask())

    assert engine.given[0] is not None
    assert engine.given[0][TENANT_ARG] == "them"
    assert engine.given[1] == {ROUTER_ARG: "r1"}


def test_the_router_says_how_the_service_is(client: TestClient, router: FakeRouter) -> None:
    for path, route in {"/speculation": "speculation", "/ui/status": "ui_status"}.items():
        assert client.get(path).json() == {"route": route}
    assert client.post("/ui/answer", json={"prompt": "hi"}).text == "data: hi\n\n"
    assert "<!doctype html>" in client.get("/ui/").text


def test_it_is_healthy_once_the_service_is_warm_and_stays_so_without_routers(
    client: TestClient, router: FakeRouter
) -> None:
    router.status = 503
    assert client.get("/health").status_code == 503
    router.status = 200
    assert client.get("/health").status_code == 200
    router.is_away = True
    assert client.get("/health").json() == {"status": "ok"}


def test_while_no_router_answers_that_is_said_in_openais_form(
    client: TestClient, router: FakeRouter
) -> None:
    router.is_away = True

    answer = client.get("/speculation")

    assert answer.status_code == 503
    assert answer.json()["error"]["type"] == "service_unavailable"


def test_without_the_page_there_is_nothing_of_it(router: FakeRouter, engine: Engine) -> None:
    client = TestClient(front(router, has_ui=False).put_before(vllm_app(engine)))

    assert client.get("/ui/").status_code == client.get("/speculation").status_code == 404
    assert client.get("/health").status_code == 200


def test_vllms_documents_stay_and_what_is_for_operators_goes(client: TestClient) -> None:
    assert "/v1/completions" in client.get("/openapi.json").json()["paths"]
    assert client.post("/scale_elastic_ep").status_code == 404


def test_what_vllm_refuses_is_refused_in_our_form(client: TestClient) -> None:
    answer = client.get("/v1/models/nope")

    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize("forwards_bodies", [True, False])
def test_adapters_need_what_ray_chooses_them_by(
    forwards_bodies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "RAY_SERVE_INGRESS_REQUEST_ROUTER_FORWARD_BODY"
    monkeypatch.setattr(direct, name, forwards_bodies)
    args: Any = SimpleNamespace(
        more_targets=(),
        router=SimpleNamespace(deployment_config={}),
        target=SimpleNamespace(lora_config=object()),
    )

    with nullcontext() if forwards_bodies else pytest.raises(InvalidConfigError, match=name):
        direct.check(args)


def test_tenants_are_counted(router: FakeRouter, engine: Engine) -> None:
    counting = front(router)
    client = TestClient(counting.put_before(vllm_app(engine)))
    counting.tenants()

    client.post("/v1/completions", json={}, headers={"x-tenant": "them"})
    client.get("/health", headers={"x-tenant": "them"})

    ((tenant, rate),) = counting.tenants()
    assert tenant == "them"
    assert rate > 0
