"""From one YAML file to the Serve application."""

from collections.abc import Mapping
from typing import Any

from ray import serve
from ray.llm._internal.serve.core.configs.openai_api_models import to_model_metadata
from ray.llm._internal.serve.core.ingress.builder import (
    _build_direct_streaming_llm_deployment,
    _build_openai_ingress_request_router,
)
from ray.llm._internal.serve.core.ingress.ingress import DEFAULT_ENDPOINTS, init
from ray.serve import Application
from ray.serve.llm import LLMConfig, build_llm_deployment
from ray.serve.llm.ingress import make_fastapi_ingress

from specray.errors import InvalidConfigError
from specray.serve import direct
from specray.serve.controller import Controller
from specray.serve.draft_server import DraftServer
from specray.serve.http_errors import add_error_handlers
from specray.serve.ingress import Router
from specray.serve.settings import AppArgs, parse, plugged_in, plugin_config
from specray.serve.target_server import TargetServer
from specray.serve.ui import routes as ui

_ENDPOINTS = DEFAULT_ENDPOINTS | {"health": lambda app: app.get("/health")}
_TARGET_PREFIX = "target:"
_ATTEMPTS = "max_constructor_retry_count"
_START_ATTEMPTS = 2  # Serve's default of 20 hides a faulty start for many minutes


def build_app(args: dict[str, Any]) -> Application:
    """The application: router, controller, target replicas and draft replicas.

    Args:
        args: What stands under `args` in the config file; see `AppArgs`.

    Raises:
        InvalidConfigError: naming the field; nothing has been started then.
    """
    parsed = parse(args)
    is_direct = direct.is_on()
    if is_direct:
        direct.check(parsed)
    controller = controller_deployment().bind(
        parsed.speculation,
        pool_names(parsed),
        parsed.draft.fan_out,
        "draft" if parsed.has_drafts else None,
        parsed.draft.max_replicas,
    )
    if parsed.has_drafts:
        draft = draft_deployment(parsed)
        drafts = [draft.bind(parsed.draft, parsed.speculation, controller, parsed.observability)]
    else:
        drafts = []
    if is_direct:
        return _direct(parsed, controller, drafts)
    targets = {
        target.model_id: build_llm_deployment(
            plugged_in(parsed, target),
            name_prefix=_TARGET_PREFIX,
            override_serve_options=_start_attempts(target),
            **_server(parsed, controller),
        )
        for target in parsed.targets
    }
    return _router(parsed, _ingress(parsed), targets, controller, drafts)


def controller_deployment() -> Any:
    """The controller's options; to be bound."""
    options = {
        "logging_config": {"enable_access_log": False},  # a heartbeat a second from everyone
        # It never scales: Serve's autoscaler reads its wishes for the others this way.
        "autoscaling_config": {
            "min_replicas": 1,
            "max_replicas": 1,
            "metrics_interval_s": 2.0,
            "look_back_period_s": 10.0,
        },
    }
    return _deployment(Controller, "controller", options)


def draft_deployment(args: AppArgs) -> Any:
    """The draft pool's options; to be bound."""
    return _deployment(DraftServer, "draft", args.draft.deployment_config)


def router_deployment(args: AppArgs, cls: type = Router) -> Any:
    """The routers' options; to be bound, if `cls` is the router with its HTTP routes."""
    options = Router.get_deployment_options(list(args.targets)) | args.router.deployment_config
    if direct.is_on():  # no request passes them by which Serve could scale them
        options = {"num_replicas": 1} | options
    if "num_replicas" in options:
        options.pop("autoscaling_config", None)
    return _deployment(cls, "router", options)


def target_name(target: LLMConfig) -> str:
    """The name of a target's deployment, as Ray Serve LLM makes it."""
    default = target.model_id.replace("/", "--").replace(".", "_")
    return f"{_TARGET_PREFIX}{target.deployment_config.get('name', default)}"


def pool_names(args: AppArgs) -> tuple[str, ...]:
    """The deployments whose replicas the controller thinks of."""
    return (*map(target_name, args.targets), *(("draft",) if args.has_drafts else ()))


def _direct(args: AppArgs, controller: Application, drafts: list[Application]) -> Application:
    """The application for direct streaming: the target in front, Ray's own choice of replicas."""
    target = args.target
    config = plugged_in(args, target)
    router = _router(args, Router, {target.model_id: target_name(target)}, controller, drafts)
    front = direct.FrontConfig(
        router, args.router.tenant_header, args.router.ui, args.observability
    )
    server = _build_direct_streaming_llm_deployment(
        config,
        name_prefix=_TARGET_PREFIX,
        override_serve_options=_start_attempts(target),
        **_server(args, controller, front),
    )
    choice = _build_openai_ingress_request_router(server=server, llm_config=config)
    app: Application = server._with_ingress_request_router(choice)
    return app


def _start_attempts(target: LLMConfig) -> dict[str, Any]:
    return {_ATTEMPTS: target.deployment_config.get(_ATTEMPTS, _START_ATTEMPTS)}


def _server(
    args: AppArgs, controller: Application, front: direct.FrontConfig | None = None
) -> dict[str, Any]:
    """Of which class the target's replicas are, and what they are given."""
    given = {"front": front} if front is not None else {}
    if args.speculation.max_depth == 0:
        return {"bind_kwargs": given, "deployment_cls": direct.PlainServer} if given else {}
    own = {
        "plugin": plugin_config(args),
        "listen_host": args.speculation.listen_host,
        "controller": controller,
    }
    return {"bind_kwargs": own | given, "deployment_cls": TargetServer}


def _router(
    args: AppArgs,
    cls: type,
    targets: Mapping[str, Application | str],
    controller: Application,
    drafts: list[Application],
) -> Application:
    loras = {target.model_id: target.lora_config for target in args.targets}
    return router_deployment(args, cls).bind(
        llm_deployments=dict(targets),
        model_cards={
            target.model_id: to_model_metadata(target.model_id, target) for target in args.targets
        },
        lora_paths={
            model_id: lora.dynamic_lora_loading_path for model_id, lora in loras.items() if lora
        },
        controller=controller,
        drafts=drafts,
        observability=args.observability,
        speculation=args.speculation,
        tenant_header=args.router.tenant_header,
    )


def _ingress(args: AppArgs) -> type:
    """The router with its HTTP routes."""
    app, endpoints = add_error_handlers(init()), _ENDPOINTS
    if args.router.ui:
        app, endpoints = ui.add_page(app), endpoints | ui.ENDPOINTS
    ingress: type = make_fastapi_ingress(Router, endpoint_map=endpoints, app=app)
    return ingress


def _deployment(cls: Any, name: str, options: dict[str, Any]) -> Any:
    ray_actor_options = {"num_cpus": 0} | (options.get("ray_actor_options") or {})
    defaults = {"name": name, _ATTEMPTS: _START_ATTEMPTS}
    try:
        return serve.deployment(
            cls, **defaults | options | {"ray_actor_options": ray_actor_options}
        )
    except (TypeError, ValueError) as error:
        raise InvalidConfigError(f"{name}.deployment_config: {error}") from error
