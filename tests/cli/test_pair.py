import json
import re
from pathlib import Path

import pytest
import torch

from specray.cli import main
from specray.draft.trimmed_head import DRAFT_FILE
from tests.models.test_agreement import save_model
from tests.models.test_pair import save, tiny_config
from tests.tokenizers_util import byte_level, sentencepiece


def test_a_pair_without_weights_is_judged_by_size(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [save(tmp_path / "target", layers=9), save(tmp_path / "draft")]

    assert main(["pair", *words]) == 0

    text = capsys.readouterr().out
    assert "every token has the same id" in text
    assert "not measured, as the weights of" in text
    assert "at an assumed acceptance of 0.8" in text
    assert text.count("recommended depth") == 4


def test_a_measured_pair_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [save_model(tmp_path / "target", 0, 3), save_model(tmp_path / "draft", 0)]

    assert main(["pair", *words, "--json", "--seconds", "1e-6"]) == 0

    report = json.loads(capsys.readouterr().out)
    assert report["fits"]
    assert 0 < report["size_ratio"] < 1
    assert set(report["expected"]) == {"greedy", "temperature 1"}
    figures = report["expected"]["greedy"]["depths"]
    assert [figure["depth"] for figure in figures] == list(range(1, 9))
    assert figures[0]["block_efficiency"] == 1 + report["agreement"]["greedy"][0]
    agreement = report["agreement"]
    for figure, verification_s in zip(figures, agreement["verification_s"], strict=True):
        draft_s = figure["depth"] * agreement["draft_token_s"]
        tokens_s = figure["block_efficiency"] * agreement["target_token_s"]
        free = tokens_s / (draft_s + agreement["target_token_s"])
        assert figure["token_rate_ratio"] == pytest.approx(free)
        assert figure["with_verification"] == pytest.approx(tokens_s / (draft_s + verification_s))


def test_a_draft_is_measured_with_its_head_as_a_replica_trims_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [save_model(tmp_path / "target", 0), save_model(tmp_path / "draft", 0)]
    (tmp_path / "draft" / DRAFT_FILE).write_text(json.dumps({"head_token_ids": [1, 2, 3]}))

    assert main(["pair", *words, "--json", "--seconds", "1e-6"]) == 0

    assert json.loads(capsys.readouterr().out)["agreement"]["sampled"][0] < 0.5


def test_a_measured_pair_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = save_model(tmp_path / "target", 0)

    assert main(["pair", model, model, "--seconds", "1e-6"]) == 0

    text = capsys.readouterr().out
    assert "greedy         1.00  1.00" in text
    assert re.search(
        r"target        \d+\.\d ms a step without a draft, \d+\.\d ms to verify 5", text
    )
    assert re.search(r"draft         \d+\.\d ms a token, as a replica runs it", text)
    assert "the target's in transformers (in vLLM they are others)" in text
    assert "drafting is taken to happen before each step: a draft that works ahead can do" in text
    assert (
        "a token passes through as many parameters of the draft as of the target, or more" in text
    )
    assert "token-rate ratio" in text


def test_nothing_is_measured_within_no_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = save_model(tmp_path / "target", 0)

    assert main(["pair", model, model, "--seconds", "0"]) == 0

    text = capsys.readouterr().out
    assert "assumed acceptance" in text
    assert "not measured" not in text


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_draft_that_does_not_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    words = [save(tmp_path / "target"), save(tmp_path / "draft", ["<unk>", "b", "a", "c"])]

    assert main(["pair", *words, *options]) == 2

    text = capsys.readouterr().out
    if options:
        assert not json.loads(text)["fits"]
    else:
        assert "the draft can't be used: id 1 is 'a' for the target" in text
        assert "draft.model.target_tokenizer would not help: the tokenizer of" in text


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_draft_with_another_tokenizer_is_told_how_it_can_be_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    target = byte_level(tmp_path / "target", ["\u0120the", "cat"], ["<end>"])
    draft = sentencepiece(tmp_path / "draft", ["\u2581the", "cow"], ["<end>"])
    for folder in (target, draft):
        tiny_config(400).save_pretrained(folder)

    assert main(["pair", target, draft, *options]) == 2

    text = capsys.readouterr().out
    if options:
        report = json.loads(text)
        assert not report["fits"]
        assert report["num_shared"] > 256
    else:
        assert "the draft can't be used as it is: id 0 is" in text
        assert f"`draft.model.target_tokenizer: {target}` it drafts with the " in text


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 35 bytes."),
    ],
)
def test_a_pair_that_fits_no_device_is_an_error(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("specray.cli.pair.measure", fail)
    model = save_model(tmp_path / "target", 0)

    assert main(["pair", model, model]) == 2

    assert "--seconds 0 compares them without" in capsys.readouterr().err


def test_a_missing_model_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pair", save(tmp_path / "target"), str(tmp_path / "none")]) == 2

    assert "there is no such folder" in capsys.readouterr().err
