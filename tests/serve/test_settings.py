import json
from pathlib import Path
from typing import Any

import pytest
from ray.serve.llm import LLMConfig
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from specray.errors import InvalidConfigError
from specray.models.ngrams import NGRAM_FILE
from specray.serve.settings import AppArgs, parse, plugged_in, plugin_config
from specray.target.names import PROPOSER_CLS, SCHEDULER_CLS, WORKER_CLS
from tests.tokenizers_util import byte_level, sentencepiece


def save_model(folder: Path, words: tuple[str, ...] = ("<unk>", "a", "b")) -> str:
    """A model as far as it is looked at before the start: its shape and its tokenizer."""
    shape = {"num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 18}
    vocabulary = {word: i for i, word in enumerate(words)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>").save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"} | shape))
    return str(folder)


@pytest.fixture
def args(tmp_path: Path) -> dict[str, Any]:
    """What a user would write, as far as it is required."""
    return {
        "target": {
            "model_loading_config": {"model_id": "m", "model_source": save_model(tmp_path / "m")},
            "accelerator_config": {"kind": "cpu"},
            "engine_kwargs": {"max_model_len": 64, "additional_config": {"theirs": 1}},
            "deployment_config": {"num_replicas": 2},
        },
        "speculation": {"max_depth": 3, "max_wait_ms": 7.0, "trust_draft_distributions": False},
    }


def test_what_is_not_written_has_defaults(args: dict[str, Any]) -> None:
    parsed = parse({"target": args["target"]})

    assert parsed.draft.method == "prompt_lookup"
    assert parsed.speculation.max_depth == 5
    assert parsed.router.deployment_config == {}


@pytest.mark.parametrize(
    ("written", "meant"),
    [(False, None), (None, None), ("file:/tmp/spans", "file:/tmp/spans"), ("http://c", "http://c")],
)
def test_traces_are_off_or_go_somewhere(args: dict[str, Any], written: Any, meant: Any) -> None:
    put(args, "observability.traces", written)

    assert parse(args).observability.traces == meant


@pytest.mark.parametrize("given", [{}, {"enable_mfu_metrics": False}])
def test_vllm_counts_flops_and_bytes_unless_told_not_to(
    args: dict[str, Any], given: dict[str, Any]
) -> None:
    args["target"]["engine_kwargs"] |= given
    parsed = parse(args)

    kwargs = plugged_in(parsed, parsed.target).engine_kwargs
    assert kwargs["enable_mfu_metrics"] == given.get("enable_mfu_metrics", True)


def test_an_engine_runs_what_we_plug_into_and_keeps_its_environment(args: dict[str, Any]) -> None:
    args["target"]["runtime_env"] = {"env_vars": {"VLLM_CPU_KVCACHE_SPACE": "1"}}
    parsed = parse(args)

    assert plugged_in(parsed, parsed.target).runtime_env == {
        "env_vars": {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_USE_V2_MODEL_RUNNER": "0",
            "VLLM_USE_RAY_V2_EXECUTOR_BACKEND": "1",
        }
    }


def test_an_actors_variables_stay_beside_ours(args: dict[str, Any]) -> None:
    """Ray takes the config's `runtime_env` instead of the one of the actor's options."""
    options = {"runtime_env": {"env_vars": {"HF_TOKEN": "x"}}}
    args["target"]["deployment_config"]["ray_actor_options"] = options
    parsed = parse(args)

    runtime_env = plugged_in(parsed, parsed.target).runtime_env
    assert runtime_env is not None
    assert runtime_env["env_vars"]["HF_TOKEN"] == "x"
    assert runtime_env["env_vars"]["VLLM_USE_V2_MODEL_RUNNER"] == "0"


def test_without_speculation_an_engine_may_be_as_it_likes(args: dict[str, Any]) -> None:
    args["speculation"] = {"max_depth": 0}
    args["target"]["engine_kwargs"]["data_parallel_size"] = 2
    args["target"]["runtime_env"] = {"env_vars": {"VLLM_USE_V2_MODEL_RUNNER": "1"}}

    assert parse(args).target.engine_kwargs["data_parallel_size"] == 2


@pytest.mark.parametrize("variables", [["A=1"], "A=1"])
def test_variables_that_are_no_mapping_are_named(args: dict[str, Any], variables: Any) -> None:
    args["target"]["runtime_env"] = {"env_vars": variables}

    with pytest.raises(InvalidConfigError, match=r"runtime_env\.env_vars must be a mapping"):
        parse(args)


def test_a_variable_that_is_no_string_is_named(args: dict[str, Any]) -> None:
    args["target"]["runtime_env"] = {"env_vars": {"VLLM_CPU_KVCACHE_SPACE": 1}}

    with pytest.raises(InvalidConfigError, match='env_vars.VLLM_CPU_KVCACHE_SPACE must be .*"1"'):
        parse(args)


def test_a_target_whose_tokenizer_is_missing_is_named_itself(args: dict[str, Any]) -> None:
    folder = Path(args["target"]["model_loading_config"]["model_source"])
    args["draft"] = {"method": "model", "model": {"model": save_model(folder.parent / "d")}}
    for file in folder.glob("tokenizer*"):
        file.unlink()

    with pytest.raises(InvalidConfigError, match=r"^target\.model_loading_config\.model_source: "):
        parse(args)


@pytest.mark.parametrize(
    ("name", "value", "needed"),
    [
        ("VLLM_USE_V2_MODEL_RUNNER", "1", "0"),
        ("VLLM_USE_RAY_V2_EXECUTOR_BACKEND", "0", "1"),
    ],
)
def test_an_environment_in_which_we_are_not_plugged_in_is_refused(
    args: dict[str, Any], name: str, value: str, needed: str
) -> None:
    args["target"]["runtime_env"] = {"env_vars": {name: value}}

    with pytest.raises(InvalidConfigError, match=f"env_vars.{name} must be {needed}"):
        parse(args)


def test_what_was_parsed_can_be_parsed_again(args: dict[str, Any]) -> None:
    parsed = parse(args)

    assert parse(parsed) == parsed


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("drafts", {}, r"^drafts: Extra inputs"),
        ("draft.metod", "model", r"^draft\.metod: Extra inputs"),
        ("draft.prompt_lookup.ngram", 3, r"^draft\.prompt_lookup\.ngram: Extra inputs"),
        ("speculation.depth", 3, r"^speculation\.depth: Extra inputs"),
        ("router.replicas", 3, r"^router\.replicas: Extra inputs"),
        ("target.engine_kwarg", {}, r"^target\.engine_kwarg: Extra inputs"),
        ("speculation.max_depth", -1, r"^speculation\.max_depth: .*greater than or equal to 0"),
        ("speculation.max_depth", 65, r"^speculation\.max_depth: .*less than or equal to 64"),
        ("speculation.max_depth", "many", r"^speculation\.max_depth: .*integer.*got 'many'"),
        ("speculation.max_wait_ms", 0, r"^speculation\.max_wait_ms: .*greater than 0"),
        ("speculation.max_wait_ms", float("inf"), r"^speculation\.max_wait_ms: "),
        ("speculation.max_wait_ms", float("nan"), r"^speculation\.max_wait_ms: "),
        ("speculation.stall_timeout_s", float("inf"), r"^speculation\.stall_timeout_s: "),
        ("speculation.stall_timeout_s", 0.001, r"^speculation\.stall_timeout_s: "),
        ("draft.cpus", [0, -1], r"^draft\.cpus\.1: .*greater than or equal to 0"),
        ("target.engine_kwargs.pipeline_parallel_size", 2, r"^target: .*pipeline_parallel_size"),
        ("draft.method", "magic", r"^draft\.method: .*'prompt_lookup'.*got 'magic'"),
        ("draft.method", "model", r"^draft: .*the field `model` is missing: name the draft"),
        ("draft.method", "custom", r"^draft: .*the field `custom` is missing"),
        ("observability.trace", "x", r"^observability\.trace: Extra inputs"),
        ("observability.traces", "x:4318", r"^observability\.traces: .*'x:4318' is neither"),
        ("observability.traces", True, r"^observability\.traces: .*neither an OTLP endpoint"),
        ("observability.trace_ratio", 0, r"^observability\.trace_ratio: .*greater than 0"),
        ("target", {}, r"^target\.model_loading_config: Field required"),
    ],
)
def test_a_faulty_field_is_named(
    args: dict[str, Any], place: str, value: Any, message: str
) -> None:
    put(args, place, value)

    with pytest.raises(InvalidConfigError, match=message):
        parse(args)


def test_all_faulty_fields_are_named_at_once(args: dict[str, Any]) -> None:
    put(args, "speculation.max_depth", -1)
    put(args, "draft.method", "magic")

    with pytest.raises(InvalidConfigError) as info:
        parse(args)
    assert [line.split(":")[0] for line in str(info.value).splitlines()] == [
        "draft.method",
        "speculation.max_depth",
    ]


@pytest.mark.parametrize("args", [None, [], "target", 3])
def test_arguments_of_another_kind_are_an_error_of_the_users(args: Any) -> None:
    with pytest.raises(InvalidConfigError):
        parse(args)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("scheduler_cls", "my.Scheduler"),
        ("worker_cls", "my.Worker"),
        ("async_scheduling", True),
    ],
)
def test_what_specray_sets_itself_is_refused(args: dict[str, Any], name: str, value: Any) -> None:
    args["target"]["engine_kwargs"][name] = value

    with pytest.raises(
        InvalidConfigError, match=rf"^target: .*engine_kwargs\.{name} .*remove it .*max_depth"
    ):
        parse(args)


def test_a_model_that_is_not_there_is_named_with_its_field(args: dict[str, Any]) -> None:
    args["target"]["model_loading_config"]["model_source"] = "/no/such/model"

    with pytest.raises(
        InvalidConfigError,
        match=r"^target\.model_loading_config\.model_source: .*/no/such/model.* no such folder",
    ):
        parse(args)


def test_without_a_source_the_id_names_the_model(args: dict[str, Any]) -> None:
    args["target"]["model_loading_config"] = {"model_id": "/no/such/model"}

    with pytest.raises(InvalidConfigError, match=r"/no/such/model"):
        parse(args)


def test_a_bucket_is_left_to_the_replica(args: dict[str, Any]) -> None:
    args["target"]["model_loading_config"]["model_source"] = "s3://bucket/model"

    loading = parse(args).target.model_loading_config
    assert loading.model_source == "s3://bucket/model"


@pytest.mark.parametrize("degree", [2, 4, 9])
def test_a_split_that_does_not_divide_the_heads_is_refused(
    args: dict[str, Any], degree: int
) -> None:
    args["target"]["engine_kwargs"]["tensor_parallel_size"] = degree
    is_possible = degree == 9  # a KV head each for three ranks

    if is_possible:
        parse(args)
        return
    with pytest.raises(
        InvalidConfigError,
        match=rf"^target\.engine_kwargs\.tensor_parallel_size: {degree} does not divide .* 9 "
        r"attention heads and 3 KV heads; choose",
    ):
        parse(args)


@pytest.mark.parametrize("degree", ["4", 0, -2, None, 1.5])
def test_a_split_that_is_no_number_is_refused(args: dict[str, Any], degree: Any) -> None:
    args["target"]["engine_kwargs"]["tensor_parallel_size"] = degree

    with pytest.raises(InvalidConfigError, match=r"tensor_parallel_size: .* give an integer"):
        parse(args)


@pytest.mark.parametrize("method", ["model", "hybrid"])
def test_a_draft_with_another_tokenizer_is_refused(
    args: dict[str, Any], tmp_path: Path, method: str
) -> None:
    other = save_model(tmp_path / "other", ("<unk>", "b", "a"))
    args["draft"] = {"method": method, "model": {"model": other}}

    with pytest.raises(
        InvalidConfigError, match=r"^draft\.model\.model .*id 1 is 'a'.*'b'.*name a draft of"
    ):
        parse(args)


def test_n_grams_are_found_wherever_the_replica_runs(
    args: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "draft").mkdir()
    monkeypatch.chdir(tmp_path)
    args["draft"] = {"method": "ngram", "ngram": {"model": "draft"}}

    parsed = parse(args).draft.ngram

    assert parsed is not None
    assert parsed.model == str(tmp_path / "draft")
    args["draft"]["ngram"]["model"] = "other"
    with pytest.raises(InvalidConfigError, match=r"^draft\.ngram\.model: .*no such folder"):
        parse(args)


def test_a_draft_with_another_tokenizer_may_translate(args: dict[str, Any], tmp_path: Path) -> None:
    target = byte_level(tmp_path / "target", ["the"], [])
    args["target"]["model_loading_config"]["model_source"] = target
    draft = {"model": sentencepiece(tmp_path / "draft", ["the"], []), "target_tokenizer": target}
    args["draft"] = {"method": "model", "model": draft}

    parsed = parse(args).draft.model

    assert parsed is not None
    assert parsed.target_tokenizer == target
    args["draft"]["model"]["target_tokenizer"] = byte_level(tmp_path / "other", ["cat"], [])
    with pytest.raises(InvalidConfigError, match=r"^draft\.model"):
        parse(args)


def test_a_draft_that_is_not_there_is_named_with_its_field(args: dict[str, Any]) -> None:
    args["draft"] = {"method": "model", "model": {"model": "./no-such-draft"}}

    with pytest.raises(InvalidConfigError, match=r"^draft\.model\.model: .*no-such-draft"):
        parse(args)


def test_a_draft_that_is_not_used_is_not_looked_at(args: dict[str, Any]) -> None:
    args["draft"] = {"method": "model", "model": {"model": "./no-such-draft"}}
    args["speculation"]["max_depth"] = 0

    parse(args)


def test_models_are_resolved_once_for_all_replicas(
    args: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(tmp_path / "draft")
    monkeypatch.chdir(tmp_path)
    args["target"]["model_loading_config"]["model_source"] = "./m"
    args["draft"] = {"method": "model", "model": {"model": "./draft"}}
    parsed = parse(args)

    assert parsed.target.model_loading_config.model_source == str(tmp_path / "m")
    assert parsed.draft.model is not None
    assert parsed.draft.model.model == str(tmp_path / "draft")


def test_the_engine_gets_the_plug_ins(args: dict[str, Any]) -> None:
    parsed = parse(args)
    engine_kwargs = plugged_in(parsed, parsed.target).engine_kwargs

    assert engine_kwargs["scheduler_cls"] == SCHEDULER_CLS
    assert engine_kwargs["worker_cls"] == WORKER_CLS
    assert engine_kwargs["async_scheduling"] is False
    assert engine_kwargs["speculative_config"] == {
        "method": "custom_class",
        "model": PROPOSER_CLS,
        "num_speculative_tokens": 3,
    }
    plugin = plugin_config(parsed)
    assert (plugin.max_depth, plugin.policy.max_wait_ms) == (3, 7.0)
    assert not plugin.trust_draft_distributions
    assert plugin.ngrams is None


def test_what_may_be_tuned_costs_no_compilation(args: dict[str, Any]) -> None:
    """vLLM hashes an engine's arguments, `additional_config` too, into its compile cache's key."""
    before = plugged_in(parse(args), parse(args).target).engine_kwargs
    args["speculation"] |= {
        "max_wait_ms": 20.0,
        "depth_policy": {"name": "fixed", "depth": 2},
        "stall_timeout_s": 3.0,
        "trust_draft_distributions": True,
    }
    args["draft"] = {"prompt_lookup": {"shared_tokens": 1000}}
    args["observability"] = {"session_log": True, "timeline": "/tmp/timeline"}

    assert plugged_in(parse(args), parse(args).target).engine_kwargs == before


def test_vllms_own_drafter_stays_and_gets_our_depth(args: dict[str, Any], tmp_path: Path) -> None:
    head = save_model(tmp_path / "head")
    args["target"]["engine_kwargs"]["speculative_config"] = {"method": "eagle3", "model": head}
    parsed = parse(args)
    assert plugged_in(parsed, parsed.target).engine_kwargs["speculative_config"] == {
        "method": "eagle3",
        "model": head,
        "num_speculative_tokens": 3,
    }


def test_the_depth_of_vllms_own_drafter_is_its_own(args: dict[str, Any]) -> None:
    drafter = {"method": "ngram", "num_speculative_tokens": 2}
    args["target"]["engine_kwargs"]["speculative_config"] = drafter
    parsed = parse(args)
    assert plugged_in(parsed, parsed.target).engine_kwargs["speculative_config"] == drafter


def test_without_speculation_vllms_own_drafter_is_left_out(args: dict[str, Any]) -> None:
    args["target"]["engine_kwargs"]["speculative_config"] = {"method": "ngram"}
    args["speculation"] = {"max_depth": 0}
    parsed = parse(args)
    assert plugged_in(parsed, parsed.target).engine_kwargs == {
        "max_model_len": 64,
        "additional_config": {"theirs": 1},
    }


def test_a_drafters_model_that_is_not_there_is_named_with_its_field(args: dict[str, Any]) -> None:
    drafter = {"method": "eagle3", "model": "/no/such/head"}
    args["target"]["engine_kwargs"]["speculative_config"] = drafter
    with pytest.raises(
        InvalidConfigError,
        match=r"^target\.engine_kwargs\.speculative_config\.model: .*no such folder",
    ):
        parse(args)


def test_a_drafter_is_refused_with_data_parallelism(args: dict[str, Any]) -> None:
    args["target"]["engine_kwargs"] |= {
        "speculative_config": {"method": "ngram"},
        "data_parallel_size": 2,
    }
    with pytest.raises(InvalidConfigError, match=r"engine_kwargs\.data_parallel_size must be 1"):
        parse(args)


def test_a_faulty_drafter_is_named_with_its_target(args: dict[str, Any]) -> None:
    args["target"]["engine_kwargs"]["speculative_config"] = {"method": "custom_class"}
    with pytest.raises(
        InvalidConfigError, match=r"^target: .*engine_kwargs\.speculative_config\.method"
    ):
        parse(args)


@pytest.mark.parametrize(("method", "has_drafts"), [("none", False), ("prompt_lookup", True)])
def test_the_engine_knows_whether_there_are_drafts(
    args: dict[str, Any], method: str, has_drafts: bool
) -> None:
    args["draft"] = {"method": method}
    parsed = parse(args)
    assert plugin_config(parsed).has_drafts is has_drafts
    assert parsed.has_drafts is has_drafts


@pytest.mark.parametrize(
    ("method", "knows"), [("ngram", True), ("hybrid", True), ("prompt_lookup", False)]
)
def test_targets_get_the_table_that_their_drafts_use(
    args: dict[str, Any], method: str, knows: bool
) -> None:
    args["draft"] = {
        "method": method,
        "ngram": {"model": "bundled:smollm2-135m-instruct-draft"},
        "model": {"model": args["target"]["model_loading_config"]["model_source"]},
    }
    parsed = parse(args)
    folder = plugin_config(parsed).ngrams

    assert knows == (folder is not None and (Path(folder) / NGRAM_FILE).is_file())


@pytest.mark.parametrize(
    ("method", "expected"), [("prompt_lookup", 100), ("ngram", 100), ("hybrid", 100), ("model", 0)]
)
def test_targets_remember_as_much_as_their_drafts_look_up(
    args: dict[str, Any], method: str, expected: int
) -> None:
    args["draft"] = {
        "method": method,
        "ngram": {"model": "bundled:smollm2-135m-instruct-draft"},
        "model": {"model": args["target"]["model_loading_config"]["model_source"]},
        "prompt_lookup": {"shared_tokens": 100, "shared_between_tenants": True},
    }
    parsed = parse(args)
    plugin = plugin_config(parsed)

    assert (plugin.shared_tokens, plugin.shared_between_tenants) == (expected, True)


def test_the_rest_of_the_targets_config_stays_as_it_is(args: dict[str, Any]) -> None:
    parsed = parse(args)
    before = parsed.target.model_dump()
    after = plugged_in(parsed, parsed.target).model_dump()

    given, plugged = before.pop("engine_kwargs"), after.pop("engine_kwargs")
    assert after | {"runtime_env": before["runtime_env"]} == before
    assert given["additional_config"] == {"theirs": 1}
    assert plugged["additional_config"]["theirs"] == 1
    assert plugged["max_model_len"] == 64
    assert parsed.target.model_dump()["engine_kwargs"] == given  # the original is not touched


def test_an_empty_additional_config_is_none(args: dict[str, Any]) -> None:
    args["target"]["engine_kwargs"]["additional_config"] = None
    parsed = parse(args)
    plugged = plugged_in(parsed, parsed.target)

    assert set(plugged.engine_kwargs["additional_config"]) == {"specray_hardware"}


def test_nothing_that_ray_derived_before_survives(args: dict[str, Any], tmp_path: Path) -> None:
    target = LLMConfig.model_validate(args["target"])
    assert "scheduler_cls" not in target.get_engine_config().engine_kwargs
    parsed = parse(args | {"target": target})

    plugged = plugged_in(parsed, parsed.target).get_engine_config()
    assert plugged.engine_kwargs["scheduler_cls"] == SCHEDULER_CLS


def test_depth_0_leaves_everything_as_it_is(args: dict[str, Any]) -> None:
    args["speculation"]["max_depth"] = 0
    parsed = parse(args)

    assert plugged_in(parsed, parsed.target) is parsed.target
    assert plugged_in(parsed, parsed.target).engine_kwargs == args["target"]["engine_kwargs"]


def another_target(folder: Path, **changes: Any) -> dict[str, Any]:
    """A second model for the same drafts."""
    loading = {"model_id": "other", "model_source": save_model(folder)}
    return {
        "model_loading_config": loading,
        "accelerator_config": {"kind": "cpu"},
        "engine_kwargs": {},
    } | changes


def test_several_targets_share_the_drafts(args: dict[str, Any], tmp_path: Path) -> None:
    args["more_targets"] = [another_target(tmp_path / "other")]
    args["draft"] = {"method": "model", "model": {"model": save_model(tmp_path / "draft")}}
    parsed = parse(args)

    assert [target.model_id for target in parsed.targets] == ["m", "other"]
    for target in parsed.targets:
        assert plugged_in(parsed, target).model_id == target.model_id
        assert plugged_in(parsed, target).engine_kwargs["scheduler_cls"] == SCHEDULER_CLS


def test_the_draft_must_fit_each_of_them(args: dict[str, Any], tmp_path: Path) -> None:
    args["more_targets"] = [another_target(tmp_path / "other")]
    save_model(tmp_path / "other", ("<unk>", "b", "a"))
    args["draft"] = {"method": "model", "model": {"model": save_model(tmp_path / "draft")}}

    with pytest.raises(InvalidConfigError, match=r"^draft\.model\.model .*/other.*id 1 is 'b'"):
        parse(args)


def test_two_targets_of_one_name_are_refused(args: dict[str, Any], tmp_path: Path) -> None:
    args["more_targets"] = [args["target"]]

    with pytest.raises(InvalidConfigError, match=r"model_ids \['m', 'm'\] are not all different"):
        parse(args)


@pytest.mark.parametrize(
    ("engine_kwargs", "message"),
    [
        ({"tensor_parallel_size": 2}, r"^more_targets\.0\.engine_kwargs\.tensor_parallel_size: 2"),
        ({"scheduler_cls": "my.Scheduler"}, r"^more_targets: .*engine_kwargs\.scheduler_cls"),
    ],
)
def test_a_further_target_s_faults_are_named_with_their_place(
    args: dict[str, Any], tmp_path: Path, engine_kwargs: dict[str, Any], message: str
) -> None:
    args["more_targets"] = [another_target(tmp_path / "other", engine_kwargs=engine_kwargs)]

    with pytest.raises(InvalidConfigError, match=message):
        parse(args)


def test_a_further_target_without_a_tokenizer_is_named_itself(
    args: dict[str, Any], tmp_path: Path
) -> None:
    args["more_targets"] = [another_target(tmp_path / "other")]
    args["draft"] = {"method": "model", "model": {"model": save_model(tmp_path / "draft")}}
    for file in (tmp_path / "other").glob("tokenizer*"):
        file.unlink()

    with pytest.raises(
        InvalidConfigError, match=r"^more_targets\.0\.model_loading_config\.model_source: "
    ):
        parse(args)


def put(args: dict[str, Any], place: str, value: Any) -> None:
    *folders, name = place.split(".")
    for folder in folders:
        args = args.setdefault(folder, {})
    args[name] = value


def test_settings_do_not_change(args: dict[str, Any]) -> None:
    parsed = AppArgs.model_validate(args)

    with pytest.raises(ValueError, match="frozen"):
        parsed.draft = parsed.draft  # type: ignore[misc]
