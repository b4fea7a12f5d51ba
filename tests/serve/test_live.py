from typing import Any

import pytest
from ray.serve.schema import DeploymentSchema, ServeDeploySchema

from specray.config import DraftConfig, ModelDraftConfig, NgramDraftConfig, SimulationConfig
from specray.errors import InvalidConfigError
from specray.serve.app import target_name
from specray.serve.changes import compare
from specray.serve.live import (
    check_deployments,
    check_pools_by_hand,
    check_user_configs,
    live_settings,
)
from specray.serve.settings import validate
from tests.serve.files import local, schema


@pytest.fixture
def config() -> dict[str, Any]:
    return local()


def draft(method: Any, **settings: Any) -> DraftConfig:
    models = {"model": ModelDraftConfig(model="any"), "ngram": NgramDraftConfig(model="any")}
    return DraftConfig(method=method, **models, **settings)


def with_settings(
    config: dict[str, Any], name: str, settings: dict[str, Any] | None
) -> ServeDeploySchema:
    config["applications"][0]["deployments"] = [{"name": name, "user_config": settings}]
    return schema(config)


@pytest.mark.parametrize(
    ("name", "method", "settings", "message"),
    [
        ("controller", "prompt_lookup", {"max_depth": -1}, r"max_depth: .*\(got -1\)"),
        ("controller", "prompt_lookup", {"max_dept": 2}, r"max_dept: Extra inputs"),
        ("controller", "prompt_lookup", {"max_wait_ms": 0}, r"max_wait_ms: "),
        ("draft", "hybrid", {"sources": []}, r"sources: "),
        ("draft", "ngram", {"sources": 5}, r"sources: "),
        ("draft", "ngram", {"sources": ["modle"]}, r"sources\.0: Input should be 'prompt_lookup'"),
        ("controller", "ngram", {"num_replicas": ["draft"]}, r"num_replicas: "),
        ("draft", "hybrid", {"simulation": {"rtt": 5}}, r"simulation: |simulation\.rtt: "),
    ],
)
def test_a_faulty_live_setting_is_named(
    config: dict[str, Any], name: str, method: str, settings: dict[str, Any], message: str
) -> None:
    (app,) = with_settings(config, name, settings).applications
    with pytest.raises(InvalidConfigError, match=rf"deployments\.{name}\.user_config\.{message}"):
        check_user_configs(app, draft(method))


def test_a_deployment_may_be_named_without_live_settings(config: dict[str, Any]) -> None:
    config["applications"][0]["deployments"] = [{"name": "controller"}, {"name": "draft"}]
    without = schema(config)
    (app,) = without.applications

    check_user_configs(app, draft("model"))
    check_pools_by_hand(app, validate(app.args))

    assert live_settings(app, "controller") == live_settings(app, "router") == {}
    config["applications"][0].pop("deployments")
    assert compare(without, schema(config)).live == ()


@pytest.mark.parametrize("name", ["router", "target:smollm2-135m-instruct"])
@pytest.mark.parametrize("settings", [{"max_depth": 1}, {}])
def test_deployments_without_live_settings_take_none(
    config: dict[str, Any], name: str, settings: dict[str, Any]
) -> None:
    (app,) = with_settings(config, name, settings).applications
    with pytest.raises(InvalidConfigError, match=f"{name}.user_config: only controller and draft"):
        check_deployments(app, validate(app.args))


def test_a_deployment_that_is_not_there_is_named(config: dict[str, Any]) -> None:
    (app,) = with_settings(config, "contoller", {"max_depth": 1}).applications
    with pytest.raises(InvalidConfigError, match="'contoller' is none of this application's"):
        check_deployments(app, validate(app.args))


def test_an_empty_user_config_is_none(config: dict[str, Any]) -> None:
    before = with_settings(config, "controller", {"is_enabled": False})
    (app,) = (after := with_settings(config, "controller", None)).applications

    check_deployments(app, validate(app.args))

    assert live_settings(app, "controller") == {}
    assert compare(before, after).beyond == ()


def test_of_two_entries_the_last_is_checked(config: dict[str, Any]) -> None:
    entries = [{"max_depth": 1}, {"max_depth": -1}]
    config["applications"][0]["deployments"] = [
        {"name": "controller", "user_config": settings} for settings in entries
    ]
    (app,) = schema(config).applications
    with pytest.raises(InvalidConfigError, match=r"max_depth: .*\(got -1\)"):
        check_user_configs(app, draft("ngram"))


def test_what_would_replace_our_options_of_a_target_is_refused(config: dict[str, Any]) -> None:
    (app,) = ServeDeploySchema.model_validate(config).applications
    args = validate(app.args)
    name = target_name(args.target)
    entry = {"name": name, "ray_actor_options": {"num_cpus": 1}}
    app = app.model_copy(update={"deployments": [DeploymentSchema.model_validate(entry)]})
    with pytest.raises(InvalidConfigError, match=r"ray_actor_options would replace what specray"):
        check_deployments(app, args)


def test_only_drafts_with_several_sources_have_live_settings(config: dict[str, Any]) -> None:
    (app,) = with_settings(config, "draft", {"sources": ["model"]}).applications
    check_user_configs(app, draft("hybrid"))
    check_user_configs(app, draft("ngram"))
    with pytest.raises(InvalidConfigError, match=r"draft\.method is model"):
        check_user_configs(app, draft("model"))


def test_a_source_that_the_draft_lacks_is_named(config: dict[str, Any]) -> None:
    (app,) = with_settings(config, "draft", {"sources": ["ngram"]}).applications
    check_user_configs(app, draft("hybrid"))
    without = DraftConfig(method="hybrid", model=ModelDraftConfig(model="any"))
    with pytest.raises(InvalidConfigError, match=r"user_config\.sources: names ngram, of which"):
        check_user_configs(app, without)


def test_a_simulation_is_live_only_where_it_was_there_at_the_start(config: dict[str, Any]) -> None:
    (app,) = with_settings(config, "draft", {"simulation": {"rtt_ms": 5}}).applications
    check_user_configs(app, draft("model", simulation=SimulationConfig()))
    with pytest.raises(InvalidConfigError, match=r"needs `draft\.simulation`"):
        check_user_configs(app, draft("model"))


@pytest.mark.parametrize("pool", ["draft", "target:smollm2-135m-instruct"])
def test_replicas_may_be_chosen_for_pools_that_there_are(config: dict[str, Any], pool: str) -> None:
    (app,) = with_settings(config, "controller", {"num_replicas": {pool: 2}}).applications

    check_pools_by_hand(app, validate(app.args))


def test_a_pool_that_is_not_there_is_named(config: dict[str, Any]) -> None:
    (app,) = with_settings(config, "controller", {"num_replicas": {"drafts": 2}}).applications

    with pytest.raises(InvalidConfigError, match="'drafts' is none of the pools target:smol"):
        check_pools_by_hand(app, validate(app.args))
