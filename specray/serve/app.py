"""From one YAML file to the Serve application."""

from typing import Any

from ray import serve
from ray.llm._internal.serve.core.configs.openai_api_models import to_model_metadata
from ray.llm._internal.serve.core.ingress.ingress import DEFAULT_ENDPOINTS
from ray.serve import Application
from ray.serve.llm import LLMConfig, build_llm_deployment
from ray.serve.llm.ingress import make_fastapi_ingress

from specray.errors import InvalidConfigError
from specray.serve.controller import Controller
from specray.serve.draft_server import DraftServer
from specray.serve.ingress import Router
from specray.serve.settings import AppArgs, parse, plugged_in
from specray.serve.target_server import TargetServer

_ENDPOINTS = DEFAULT_ENDPOINTS | {"health": lambda app: app.get("/health")}
_START_ATTEMPTS = 2  # Serve's default of 20 hides a faulty start for many minutes


def build_app(args: dict[str, Any]) -> Application:
    """The application: router, controller, target replicas and draft replicas.

    Args:
        args: What stands under `args` in the config file; see `AppArgs`.

    Raises:
        InvalidConfigError: naming the field; nothing has been started then.
    """
    parsed = parse(args)
    quiet = {"logging_config": {"enable_access_log": False}}  # a heartbeat a second from everyone
    controller = _deployment(Controller, "controller", quiet).bind(parsed.speculation)
    target = _target(parsed, controller)
    if parsed.speculation.max_depth > 0:
        draft = _deployment(DraftServer, "draft", parsed.draft.deployment_config)
        drafts = [draft.bind(parsed.draft, parsed.speculation.listen_host, controller)]
    else:
        drafts = []
    return _router(parsed, target, controller, drafts)


def _target(args: AppArgs, controller: Application) -> Application:
    options = {"max_constructor_retry_count": _START_ATTEMPTS}
    if args.speculation.max_depth == 0:
        return build_llm_deployment(
            args.target, name_prefix="target:", override_serve_options=options
        )
    return build_llm_deployment(
        plugged_in(args),
        name_prefix="target:",
        bind_kwargs={"listen_host": args.speculation.listen_host, "controller": controller},
        override_serve_options=options,
        deployment_cls=TargetServer,
    )


def _router(
    args: AppArgs, target: Application, controller: Application, drafts: list[Application]
) -> Application:
    config: LLMConfig = args.target
    options = Router.get_deployment_options([config]) | args.router.deployment_config
    if "num_replicas" in options:
        options.pop("autoscaling_config", None)
    router = _deployment(make_fastapi_ingress(Router, endpoint_map=_ENDPOINTS), "router", options)
    lora = config.lora_config
    return router.bind(
        llm_deployments={config.model_id: target},
        model_cards={config.model_id: to_model_metadata(config.model_id, config)},
        lora_paths={config.model_id: lora.dynamic_lora_loading_path} if lora else {},
        controller=controller,
        drafts=drafts,
        stall_timeout_s=args.speculation.stall_timeout_s,
    )


def _deployment(cls: Any, name: str, options: dict[str, Any]) -> Any:
    ray_actor_options = {"num_cpus": 0} | options.get("ray_actor_options", {})
    defaults = {"name": name, "max_constructor_retry_count": _START_ATTEMPTS}
    try:
        return serve.deployment(
            cls, **defaults | options | {"ray_actor_options": ray_actor_options}
        )
    except (TypeError, ValueError) as error:
        raise InvalidConfigError(f"{name}.deployment_config: {error}") from error
