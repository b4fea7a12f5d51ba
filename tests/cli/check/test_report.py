import json
from pathlib import Path

import pytest

from specray.cli.check.report import text
from specray.serve.check import check_file

DEPLOYMENTS = Path(__file__).parents[3] / "deployments"


@pytest.fixture(autouse=True)
def _no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specray.models.sources.try_to_load_from_cache", lambda *_: None)


def explained(name: str) -> str:
    file = DEPLOYMENTS / f"{name}.yaml"
    return text(file, check_file(file))


def test_pools_models_and_memory_are_told() -> None:
    told = explained("llama70b")

    assert "target:llama-3_3-70b-instruct  1         1     4     H100" in told
    assert "in all                                   3 CPUs, 5 GPUs" in told
    assert "target meta-llama/Llama-3.3-70B-Instruct: 70.6 billion parameters" in told
    assert "weights   32.85 GiB on each of 4" in told
    assert "KV cache  32 KiB a token: 8.00 GiB for max_tokens" in told
    assert told.endswith("llama70b.yaml: no faults, 0 warnings")


def test_a_pool_that_follows_the_load_is_told_with_its_bounds() -> None:
    told = explained("llama70b-3b")

    assert "target:llama-3_3-70b-instruct  1 to 2    1     4     H100" in told
    assert "in all                                   3 to 4 CPUs, 5 to 9 GPUs" in told


def test_a_gpu_of_any_type_is_suggested() -> None:
    assert "in all    11.55 GiB: has room on L4 or larger" in explained("llama70b")


def test_what_a_draft_holds_is_told_in_its_targets_requests() -> None:
    assert "room      262,144 tokens: 8.0 requests of 32,768" in explained("llama70b")


def test_without_a_model_the_method_is_named() -> None:
    told = explained("local")

    assert "draft ngram" in told
    assert "nothing to compare" in told


def test_quantised_shares_are_told() -> None:
    assert "406 billion parameters, 80% of them in 8 bits" in explained("llama405b")


def test_warnings_come_with_the_file(tmp_path: Path) -> None:
    file = tmp_path / "file.yaml"
    written = (DEPLOYMENTS / "llama70b.yaml").read_text()
    file.write_text(written.replace("max_sessions: 512", "max_sessions: 8"))
    told = text(file, check_file(file))

    assert "warning: draft.model.max_sessions: 1 × 8 sessions for up to 256 requests" in told
    assert told.endswith("no faults, 1 warning")


def test_the_readme_shows_what_is_printed() -> None:
    told = explained("llama70b").replace(str(DEPLOYMENTS), "deployments")

    assert told in (DEPLOYMENTS.parent / "README.md").read_text()


def test_layers_that_read_the_latest_tokens_only_are_told(tmp_path: Path) -> None:
    config = {"model_type": "gpt_oss", "dtype": "bfloat16", "sliding_window": 128}
    (tmp_path / "config.json").write_text(json.dumps(config))
    file = tmp_path / "file.yaml"
    written = (DEPLOYMENTS / "llama70b.yaml").read_text()
    file.write_text(written.replace("meta-llama/Llama-3.3-70B-Instruct", str(tmp_path)))

    told = text(file, check_file(file))
    assert "KV cache  18 KiB a token on each of 4; 18 of 36 layers read the latest 128 only" in told
