"""The config files that we ship: checked as far as this is possible without their models."""

from pathlib import Path

import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

from specray.config import LivePolicyConfig
from specray.serve.settings import AppArgs

FILES = sorted((Path(__file__).parents[2] / "deployments").glob("*.yaml"))
DEPLOYMENTS = {"controller", "draft", "router"}


def test_there_are_some() -> None:
    names = {"local", "local-model-draft", "local-hybrid", "llama70b", "llama405b"}
    assert {file.stem for file in FILES} >= names


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_file_is_what_serve_and_specray_take(file: Path) -> None:
    config = ServeDeploySchema.model_validate(yaml.safe_load(file.read_text()))
    (application,) = config.applications
    args = AppArgs.model_validate(application.args)

    assert application.import_path == "specray:build_app"
    assert args.speculation.max_depth > 0
    for deployment in application.deployments:
        assert deployment.name in DEPLOYMENTS
        if deployment.name == "controller":
            LivePolicyConfig.model_validate(deployment.user_config)


@pytest.mark.parametrize("name", ["llama70b", "llama405b"])
def test_a_replica_of_many_gpus_and_a_draft_of_one(name: str) -> None:
    file = next(file for file in FILES if file.stem == name)
    args = AppArgs.model_validate(yaml.safe_load(file.read_text())["applications"][0]["args"])
    engine = args.target.get_engine_config()

    num_gpus = args.target.engine_kwargs["tensor_parallel_size"]
    assert sum(bundle.get("GPU", 0) for bundle in engine.placement_bundles) == num_gpus
    assert args.draft.deployment_config["ray_actor_options"]["num_gpus"] == 1
