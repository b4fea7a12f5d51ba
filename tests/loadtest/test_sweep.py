from pathlib import Path
from typing import Any

import pytest
import yaml

from loadtest.sweep import SYSTEMS, config_of, num_gpus
from specray.serve.settings import validate

DEPLOYMENTS = Path(__file__).parents[2] / "deployments"


def source(name: str) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load((DEPLOYMENTS / f"{name}.yaml").read_text())
    return config


@pytest.mark.parametrize(
    ("system", "gpus"), [("baseline", 8), ("co-located", 8), ("disaggregated", 9)]
)
def test_gpus_of_a_system(system: str, gpus: int) -> None:
    assert num_gpus(system, source("llama70b")) == gpus


def test_the_baseline_is_the_same_target_without_drafts() -> None:
    before = source("local")
    args = validate(config_of("baseline", before)["applications"][0]["args"])

    assert args.speculation.max_depth == 0
    assert args.target == validate(before["applications"][0]["args"]).target
    assert before == source("local")


def test_the_co_located_one_is_rays_own_app_with_vllms_speculation() -> None:
    (app,) = config_of("co-located", source("local"))["applications"]
    (target,) = app["args"]["llm_configs"]

    assert app["import_path"] == "ray.serve.llm:build_openai_app"
    assert target["engine_kwargs"]["speculative_config"]["method"] == "ngram"
    assert target["engine_kwargs"]["speculative_config"]["num_speculative_tokens"] == 5
    assert "deployments" not in app
    given = {"method": "eagle3", "model": "m", "num_speculative_tokens": 3}
    (app,) = config_of("co-located", source("local"), given)["applications"]
    assert app["args"]["llm_configs"][0]["engine_kwargs"]["speculative_config"] == given


def test_an_unknown_system_is_named() -> None:
    with pytest.raises(SystemExit, match=SYSTEMS[0]):
        config_of("fast", source("local"))
