from typing import Any

import pytest
from ray._common.utils import import_attr
from ray.llm._internal.serve.constants import RAYLLM_VLLM_ENGINE_CLS_ENV
from ray.serve.llm import LLMConfig

from loadtest.off_is_free import plain_config, ratios
from specray.serve.target_engine import TargetEngine
from tests.loadtest.test_sweep import source


def target(config: dict[str, Any]) -> LLMConfig:
    """Ray's own settings of the only model; they refuse what they do not know."""
    (app,) = config["applications"]
    assert app["import_path"] == "ray.serve.llm:build_openai_app"
    (model,) = app["args"]["llm_configs"]
    return LLMConfig.model_validate(model)


def test_plain_is_rays_own_app_without_speculation_or_plug_ins() -> None:
    before = source("local")
    plain = target(plain_config(before))

    assert {"speculative_config", "scheduler_cls"}.isdisjoint(plain.engine_kwargs)
    assert RAYLLM_VLLM_ENGINE_CLS_ENV not in plain.runtime_env["env_vars"]
    assert before == source("local")


def test_with_our_executor_only_the_engine_class_is_another() -> None:
    plain, same = (target(plain_config(source("local"), has_our_executor=h)) for h in (False, True))
    engine = same.runtime_env["env_vars"].pop(RAYLLM_VLLM_ENGINE_CLS_ENV)

    assert import_attr(engine) is TargetEngine
    assert same == plain


def test_what_is_tried_is_held_against_each_of_the_others() -> None:
    found = ratios(["plain", "plain with our executor"], [[9.0, 11.0], [19.0, 21.0], [20.0, 20.0]])

    assert found == {
        "to plain": pytest.approx(2.0),
        "to plain with our executor": pytest.approx(1.0),
    }
