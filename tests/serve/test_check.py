import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import ray
import yaml

from specray.errors import InvalidConfigError
from specray.serve.check import check_file
from tests.serve.test_settings import save_model

Config = dict[str, Any]


@pytest.fixture(autouse=True)
def _no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specray.models.sources.try_to_load_from_cache", lambda *_: None)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """Two models that lie here, as far as a check looks at them."""
    target = {
        "model_loading_config": {"model_id": "m", "model_source": save_model(tmp_path / "m")},
        "accelerator_type": "H100",
        "engine_kwargs": {"max_model_len": 64},
        "deployment_config": {"num_replicas": 1},
    }
    draft = {
        "method": "model",
        "model": {"model": save_model(tmp_path / "d")},
        "deployment_config": {"ray_actor_options": {"num_gpus": 1}},
    }
    application = {
        "name": "a",
        "route_prefix": "/",
        "import_path": "specray:build_app",
        "args": {"target": target, "draft": draft, "speculation": {}, "router": {}},
        "deployments": [{"name": "controller", "user_config": {"is_enabled": True}}],
    }
    return {"applications": [application]}


def written(folder: Path, config: Config) -> Path:
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(config))
    return file


def args_of(config: Config) -> dict[str, Any]:
    args: dict[str, Any] = config["applications"][0]["args"]
    return args


@pytest.mark.parametrize("name", ["bundled:smollm3", "/models/none"])
def test_a_model_that_can_not_be_there_is_refused(
    tmp_path: Path, config: Config, name: str
) -> None:
    args_of(config)["target"]["model_loading_config"]["model_source"] = name
    with pytest.raises(InvalidConfigError, match=r"target\.model_loading_config\.model_source: "):
        check_file(written(tmp_path, config))

    args_of(config)["target"]["model_loading_config"]["model_source"] = "s3://bucket/m"
    args_of(config)["draft"]["model"]["model"] = name
    with pytest.raises(InvalidConfigError, match=r"draft\.model\.model: "):
        check_file(written(tmp_path, config))


def test_a_sound_file_is_explained(tmp_path: Path, config: Config) -> None:
    report = check_file(written(tmp_path, config))

    (application,) = report.applications
    assert [pool.name for pool in application.pools] == [
        "router",
        "controller",
        "target:m",
        "draft",
    ]
    target = application.targets["m"]
    assert target is not None
    assert target.rooms[0].num_tokens > 64
    assert application.draft is not None
    assert application.draft.is_on_gpu
    assert application.tokenizers == "every token has the same id for target and draft"
    json.dumps(asdict(report))


def test_what_a_draft_s_tokenizer_does_otherwise_is_warned_of_once(
    tmp_path: Path, config: Config
) -> None:
    more = json.loads(json.dumps(args_of(config)["target"]))
    more["model_loading_config"] = {"model_id": "n", "model_source": save_model(tmp_path / "n")}
    args_of(config)["more_targets"] = [more]
    (tmp_path / "d" / "chat_template.jinja").write_text("{{ messages }}")
    (application,) = check_file(written(tmp_path, config)).applications

    told = [warning for warning in application.warnings if "chat templates" in warning]
    assert len(told) == 1
    assert told[0].startswith("draft.model.model: chat templates differ")
    assert application.tokenizers == "every token has the same id for target and draft"


def test_a_hybrid_s_model_counts_too(tmp_path: Path, config: Config) -> None:
    args_of(config)["draft"]["method"] = "hybrid"
    (application,) = check_file(written(tmp_path, config)).applications

    assert application.draft is not None


@pytest.mark.parametrize(
    ("drafter", "told"),
    [
        (
            {"method": "draft_model", "model": "meta-llama/Llama-3.2-1B-Instruct"},
            "draft_model meta-llama/Llama-3.2-1B-Instruct, inside it; counted above",
        ),
        (
            {"method": "draft_model", "model": "bundled:unknown"},
            "draft_model bundled:unknown, inside it; its size is not known from here",
        ),
        (
            {"method": "eagle3", "model": "a/head"},
            "eagle3 a/head, inside it; what a head takes is not counted above",
        ),
        ({"method": "ngram"}, "ngram, inside it; takes next to nothing"),
    ],
)
def test_a_drafter_inside_the_target_is_told_of(
    tmp_path: Path, config: Config, drafter: dict[str, Any], told: str
) -> None:
    args = args_of(config)
    args["target"]["engine_kwargs"] = {"speculative_config": drafter}
    args["draft"] = {"method": "none"}
    (application,) = check_file(written(tmp_path, config)).applications

    assert list(application.engine_drafters.values()) == [told]
    assert application.tokenizers == "nothing to compare: there is no draft pool"


def test_nothing_is_started(tmp_path: Path, config: Config) -> None:
    check_file(written(tmp_path, config))

    assert not ray.is_initialized()


def test_a_model_that_is_not_here_is_not_fetched(tmp_path: Path, config: Config) -> None:
    args_of(config)["draft"]["model"]["model"] = "meta-llama/Llama-3.2-1B-Instruct"
    (application,) = check_file(written(tmp_path, config)).applications

    assert application.tokenizers == (
        "not compared: meta-llama/Llama-3.2-1B-Instruct not on this machine; compared at start"
    )


def test_a_bucket_is_not_looked_into(tmp_path: Path, config: Config) -> None:
    args_of(config)["target"]["model_loading_config"]["model_source"] = "s3://bucket/m"
    (application,) = check_file(written(tmp_path, config)).applications

    assert application.targets == {"m": None}
    assert "bucket" in application.tokenizers


def test_applications_that_are_not_ours_are_named(tmp_path: Path, config: Config) -> None:
    other = {"name": "b", "route_prefix": "/b", "import_path": "their:app"}
    config["applications"].append(other)

    assert check_file(written(tmp_path, config)).others == ("b",)


def unknown_key(config: Config) -> None:
    config["http_option"] = {}


def unknown_argument(config: Config) -> None:
    args_of(config)["speculation"]["depth"] = 3


def unknown_deployment(config: Config) -> None:
    config["applications"][0]["deployments"].append({"name": "drafts", "num_replicas": 2})


def faulty_policy(config: Config) -> None:
    config["applications"][0]["deployments"][0]["user_config"] = {"max_depth": -1}


def sources_without_hybrid(config: Config) -> None:
    entry = {"name": "draft", "user_config": {"sources": ["model"]}}
    config["applications"][0]["deployments"].append(entry)


def unknown_source(config: Config) -> None:
    args_of(config)["draft"]["method"] = "hybrid"
    entry = {"name": "draft", "user_config": {"sources": ["oracle"]}}
    config["applications"][0]["deployments"].append(entry)


def faulty_split(config: Config) -> None:
    args_of(config)["target"]["engine_kwargs"]["tensor_parallel_size"] = 4


def faulty_split_number(config: Config) -> None:
    args_of(config)["target"]["engine_kwargs"]["tensor_parallel_size"] = 0


def unknown_engine_option(config: Config) -> None:
    args_of(config)["target"]["engine_kwargs"]["max_seqs"] = 1


def no_number(config: Config) -> None:
    args_of(config)["target"]["engine_kwargs"]["max_model_len"] = "32k"


def no_whole_room(config: Config) -> None:
    target = args_of(config)["target"]
    target["accelerator_type"], target["accelerator_config"] = None, {"kind": "cpu"}
    target["runtime_env"] = {"env_vars": {"VLLM_CPU_KVCACHE_SPACE": "1.5"}}


def unknown_gpu(config: Config) -> None:
    args_of(config)["target"]["accelerator_type"] = "H1000"


def fixed_and_scaled(config: Config) -> None:
    args_of(config)["target"]["deployment_config"]["autoscaling_config"] = {"min_replicas": 1}


def fixed_and_scaled_in_deployments(config: Config) -> None:
    both = {"name": "draft", "num_replicas": 1, "autoscaling_config": {"min_replicas": 1}}
    config["applications"][0]["deployments"].append(both)


def other_tokenizer(config: Config) -> None:
    save_model(Path(args_of(config)["draft"]["model"]["model"]), ("<unk>", "b", "a"))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (unknown_key, r"http_option: .*http_options\?"),
        (unknown_argument, r"applications\.a: speculation\.depth: Extra inputs"),
        (unknown_deployment, r"applications\.a: deployments: 'drafts' is none of"),
        (faulty_policy, r"deployments\.controller\.user_config\.max_depth: .*greater than"),
        (
            sources_without_hybrid,
            r"deployments\.draft\.user_config: .* is for a draft with several",
        ),
        (unknown_source, r"deployments\.draft\.user_config\.sources\.0: .*'prompt_lookup'"),
        (faulty_split, r"target\.engine_kwargs\.tensor_parallel_size: 4 does not divide"),
        (faulty_split_number, r"target\.engine_kwargs\.tensor_parallel_size: 0 is no number"),
        (unknown_engine_option, r"target\.engine_kwargs: Unknown engine argument: max_seqs"),
        (no_number, r"target\.engine_kwargs\.max_model_len: must be a whole number, not '32k'"),
        (no_whole_room, r"target\.runtime_env\.env_vars\.VLLM_CPU_KVCACHE_SPACE: .*'1.5'"),
        (unknown_gpu, r"target\.accelerator_type: .*H1000"),
        (fixed_and_scaled, r"target\.deployment_config: .*num_replicas is not allowed"),
        (fixed_and_scaled_in_deployments, r"(?s)deployments\.1.*num_replicas is not allowed"),
        (other_tokenizer, r"draft\.model\.model .*id 1 is 'a'"),
    ],
)
def test_a_fault_is_named_with_its_field(
    tmp_path: Path, config: Config, fault: Callable[[Config], None], message: str
) -> None:
    fault(config)

    with pytest.raises(InvalidConfigError, match=message):
        check_file(written(tmp_path, config))


def test_all_applications_faults_are_named(tmp_path: Path, config: Config) -> None:
    second = json.loads(json.dumps(config["applications"][0]))
    config["applications"].append(second | {"name": "b", "route_prefix": "/b"})
    for application in config["applications"]:
        application["args"]["speculation"] = {"max_depth": 99}

    with pytest.raises(InvalidConfigError) as info:
        check_file(written(tmp_path, config))
    assert [line.split(": ")[1] for line in str(info.value).splitlines()] == [
        "applications.a",
        "applications.b",
    ]
