from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specray.errors import InvalidConfigError
from specray.serve import direct
from specray.serve.app import build_app, target_name
from specray.serve.settings import parse
from tests.serve.test_settings import another_target, save_model


@pytest.fixture(autouse=True)
def _neither_ray_nor_routes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specray.serve.app.make_fastapi_ingress", lambda cls, **_: cls)  # seconds
    context = SimpleNamespace(runtime_env={})  # asking Ray for it would start one
    monkeypatch.setattr(
        "ray.llm._internal.serve.core.server.llm_server.ray.get_runtime_context", lambda: context
    )


@pytest.fixture
def args(tmp_path: Path) -> dict[str, Any]:
    target = another_target(tmp_path / "m")
    target["model_loading_config"]["model_id"] = "org/m-1.5"
    return {"target": target, "draft": {"deployment_config": {"num_replicas": 2}}}


def bound_to_router(args: dict[str, Any]) -> dict[str, Any]:
    router: Any = build_app(args)
    assert router._bound_deployment.name == "router"
    kwargs: dict[str, Any] = router._bound_deployment.init_kwargs
    return kwargs


def name(application: Any) -> str:
    return str(application._bound_deployment.name)


def test_one_deployment_for_each_role(args: dict[str, Any]) -> None:
    bound = bound_to_router(args)

    assert name(bound["controller"]) == "controller"
    assert [name(draft) for draft in bound["drafts"]] == ["draft"]
    assert bound["drafts"][0]._bound_deployment.num_replicas == 2
    assert {model: name(app) for model, app in bound["llm_deployments"].items()} == {
        "org/m-1.5": "target:org--m-1_5"
    }


def test_the_name_of_a_target_is_the_one_that_ray_gives_it(args: dict[str, Any]) -> None:
    (target,) = bound_to_router(args)["llm_deployments"].values()

    assert target_name(parse(args).target) == name(target)


def test_how_often_a_replica_is_started_anew_is_the_files_say(args: dict[str, Any]) -> None:
    (target,) = bound_to_router(args)["llm_deployments"].values()
    assert target._bound_deployment._deployment_config.max_constructor_retry_count == 2

    args["target"]["deployment_config"] = {"max_constructor_retry_count": 7}
    (target,) = bound_to_router(args)["llm_deployments"].values()
    assert target._bound_deployment._deployment_config.max_constructor_retry_count == 7


def test_a_second_target_shares_router_controller_and_drafts(
    args: dict[str, Any], tmp_path: Path
) -> None:
    args["more_targets"] = [another_target(tmp_path / "other")]
    bound = bound_to_router(args)

    assert set(bound["llm_deployments"]) == set(bound["model_cards"]) == {"org/m-1.5", "other"}
    assert len(bound["drafts"]) == 1
    controllers = {
        id(app._bound_deployment.init_kwargs["controller"])
        for app in bound["llm_deployments"].values()
    }
    assert controllers == {id(bound["controller"])}


def test_without_speculation_there_is_no_draft(args: dict[str, Any], tmp_path: Path) -> None:
    args["speculation"] = {"max_depth": 0}
    args["draft"]["prompt_lookup"] = {}
    save_model(tmp_path / "m")

    assert bound_to_router(args)["drafts"] == []


def test_without_a_draft_pool_targets_speculate_by_themselves(args: dict[str, Any]) -> None:
    args["draft"] = {"method": "none"}
    bound = bound_to_router(args)

    assert bound["drafts"] == []
    (target,) = bound["llm_deployments"].values()
    assert target._bound_deployment.func_or_class.__name__ == "TargetServer"
    assert target._bound_deployment.init_kwargs["plugin"].has_drafts is False
    controller = bound["controller"]._bound_deployment
    _, pools, _, sized, _ = controller.init_args
    assert (pools, sized) == ((target._bound_deployment.name,), None)


@pytest.mark.parametrize("pool", ["draft", "router"])
def test_options_left_empty_are_the_defaults(args: dict[str, Any], pool: str) -> None:
    args[pool] = args.get(pool, {}) | {"deployment_config": {"ray_actor_options": None}}

    assert build_app(args)


@pytest.mark.parametrize("is_on", [True, False])
def test_the_page_has_routes_only_where_it_is_on(
    args: dict[str, Any], monkeypatch: pytest.MonkeyPatch, is_on: bool
) -> None:
    made: dict[str, Any] = {}
    monkeypatch.setattr(
        "specray.serve.app.make_fastapi_ingress", lambda cls, **given: made.update(given) or cls
    )
    build_app(args | {"router": {"ui": is_on}})

    paths = {getattr(route, "path", None) for route in made["app"].routes}
    assert ("/ui/" in paths) == is_on
    assert ("ui_status" in made["endpoint_map"]) == is_on
    assert {"chat", "health"} <= made["endpoint_map"].keys()


@pytest.mark.parametrize("pool", ["draft", "router"])
@pytest.mark.parametrize(
    ("options", "message"), [({"num_replica": 3}, "num_replica"), ({"num_replicas": -2}, "-2")]
)
def test_options_that_serve_refuses_are_named_with_their_field(
    args: dict[str, Any], pool: str, options: dict[str, Any], message: str
) -> None:
    args[pool] = args.get(pool, {}) | {"deployment_config": options}
    with pytest.raises(InvalidConfigError, match=rf"(?s)^{pool}\.deployment_config: .*{message}"):
        build_app(args)


@pytest.fixture
def _direct(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "is_on", lambda: True)


@pytest.mark.usefixtures("_direct")
def test_by_direct_streaming_the_target_stands_in_front(args: dict[str, Any]) -> None:
    app: Any = build_app(args)

    assert name(app) == "target:org--m-1_5"
    assert name(app._ingress_request_router) == "LLMRouter"
    bound = app._bound_deployment.init_kwargs
    assert name(bound["controller"]) == "controller"
    router = bound["front"].router
    assert name(router) == "router"
    given = router._bound_deployment.init_kwargs
    assert given["llm_deployments"] == {"org/m-1.5": "target:org--m-1_5"}
    assert [name(draft) for draft in given["drafts"]] == ["draft"]
    assert given["controller"] is bound["controller"]
    assert app._bound_deployment._deployment_config.max_constructor_retry_count == 2
    assert router._bound_deployment.num_replicas == 1
    assert router._bound_deployment._deployment_config.autoscaling_config is None


@pytest.mark.usefixtures("_direct")
def test_so_it_does_without_speculation(args: dict[str, Any]) -> None:
    args["speculation"] = {"max_depth": 0}
    app: Any = build_app(args)

    assert app._bound_deployment.func_or_class.__name__ == "PlainServer"
    assert set(app._bound_deployment.init_kwargs) >= {"front"}


@pytest.mark.usefixtures("_direct")
def test_routers_that_no_request_passes_are_not_scaled_by_requests(args: dict[str, Any]) -> None:
    options = {"autoscaling_config": {"min_replicas": 1, "max_replicas": 8}}

    with pytest.raises(InvalidConfigError, match=r"router\.deployment_config"):
        build_app(args | {"router": {"deployment_config": options}})


@pytest.mark.usefixtures("_direct")
def test_direct_streaming_of_two_models_is_refused(args: dict[str, Any], tmp_path: Path) -> None:
    args["more_targets"] = [another_target(tmp_path / "other")]

    with pytest.raises(InvalidConfigError, match="more_targets"):
        build_app(args)
