import json
import sys
from pathlib import Path

import pytest

from specray.cli import USER_ERROR, main
from specray.cli.plan import plots, report
from specray.cli.plan.scenario import Facts
from specray.simulate.sizing import Outcome, Trial, advise
from specray.simulate.summary import Percentiles, Summary

LLAMA = ["--target", "meta-llama/Llama-3.3-70B-Instruct", "--hardware", "H100", "--tp", "4"]
LLAMA += ["--draft", "meta-llama/Llama-3.2-1B-Instruct"]
SMALL = ["--qps", "2", "--drafts", "1", "--depths", "3", "--seconds", "2", "--jobs", "1"]
SMALL += ["--prompt-tokens", "50", "--answer-tokens", "20", "--spread", "0"]
FACTS = Facts("big", "4 × H100", "small", "1 × L40S", 1, "0.7", "poisson", 5, 0)


def summary(tpot_s: float, tokens_per_s: float = 100.0) -> Summary:
    tail = Percentiles(tpot_s, tpot_s, tpot_s)
    return Summary(
        10, 100.0, tokens_per_s, tail, tail, tpot_s, 2.0, 0.5, 2.0, 3.0, 0.8, 0.1, 0.2, tail
    )


OUTCOMES = [
    Outcome(trial, 60.0, summary(tpot_s, speed), 12.5)
    for trial, tpot_s, speed in [
        (Trial(1.0, "off"), 0.02, 100.0),
        (Trial(1.0, "specray", 1), 0.01, 100.0),
        (Trial(1.0, "fixed", 1, 3), 0.012, 100.0),
        (Trial(8.0, "off"), 0.03, 80.0),
        (Trial(8.0, "specray", 1), 0.03, 80.0),
        (Trial(8.0, "fixed", 1, 3), 0.05, 60.0),
    ]
]


@pytest.fixture(scope="module")
def answer() -> str:
    """What a plan by models' names prints as JSON."""
    import io
    from contextlib import redirect_stdout

    out = io.StringIO()
    with redirect_stdout(out):
        assert main(["plan", *LLAMA, *SMALL, "--json"]) == 0
    return out.getvalue()


def test_a_plan_by_names_holds_everything(answer: str) -> None:
    plan = json.loads(answer)

    assert plan["facts"]["target_gpus"] == "4 × H100"
    assert [o["trial"]["system"] for o in plan["outcomes"]] == ["off", "specray", "fixed"]
    off = plan["outcomes"][0]["summary"]
    # 141 GB over 4 × 3.35 TB/s × 0.8, collectives and overhead: vLLM's published 66 tokens/s.
    assert 1 / off["mean_tpot_s"] == pytest.approx(66, rel=0.1)
    assert plan["advice"][0]["qps"] == 2.0


def test_equal_seeds_give_equal_plans(answer: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *LLAMA, *SMALL, "--json"]) == 0
    again = capsys.readouterr().out

    assert again == answer


@pytest.mark.parametrize("file", ["llama405b", "local"])
def test_a_plan_of_a_file_takes_its_models_and_gpus(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["plan", f"deployments/{file}.yaml", *SMALL]
    if file == "local":
        assert main(words) == USER_ERROR  # it runs on cores, whose speed no data sheet tells
        assert "--hardware: 'nothing' is no GPU that we know" in capsys.readouterr().err
        words += ["--hardware", "L40S"]
    assert main(words) == 0
    out = capsys.readouterr().out

    assert {
        "llama405b": "Llama-3.1-405B-Instruct-FP8 on 8 × H100 each, drafts meta-llama/Llama-3.1-8B",
        "local": "drafts prompt_lookup on no GPU each",
    }[file] in out
    assert "what to do" in out
    assert "highest QPS tried" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--target: missing; give a config file, or --target, --draft and --hardware"),
        (["--target", "a", "--hardware", "H100"], "--draft: missing"),
        ([*LLAMA, "--hardware", "H900"], "--hardware: 'H900' is no GPU that we know; there are H1"),
        ([*LLAMA, "--tp", "1"], "--tp: meta-llama/Llama-3.3-70B-Instruct leaves room for 0 tokens"),
        (["deployments/llama70b.yaml", "--tp", "1"], "leaves room for 0 tokens of KV cache on 1 ×"),
        ([*LLAMA, "--draft", "bundled:none"], "--draft: the size of bundled:none is not known"),
        ([*LLAMA, "--qps", "1,x"], "--qps: '1,x' is no list of numbers"),
        ([*LLAMA, "--qps", "0"], "--qps: 0.0 is not between"),
        ([*LLAMA, "--drafts", "0"], "--drafts: 0 is not between 1 and 64"),
        ([*LLAMA, "--depths", "99"], "--depths: 99 is not between 1 and 64"),
        ([*LLAMA, "--acceptance", "1.5"], "acceptance: 1.5 must be"),
        ([*LLAMA, "--prompt-tokens", "-1"], "--prompt-tokens: -1.0 must be above 0"),
        ([*LLAMA, "--answer-tokens", "inf"], "--answer-tokens: inf must be above 0"),
        ([*LLAMA, "--gpu-price", "0"], "--gpu-price: 0.0 must be above 0"),
        ([*LLAMA, "--efficiency", "2"], "--efficiency: 2.0 must be between 0.01 and 1"),
        ([*LLAMA, "--ahead", "1.1"], "--ahead: 1.1 must be between 0 and 1"),
        ([*LLAMA, "--max-depth", "65"], "--max-depth: 65 must be between 1 and 64"),
        ([*LLAMA, "--seed", "-1"], "--seed: -1 must be 0 or more"),
        ([*LLAMA, "--arrivals", "nowhere.jsonl"], "nowhere.jsonl"),
        ([*LLAMA, "--plot", "plan.doc"], "--plot: plan.doc must end in one of .svg, .png, .pdf"),
        (["nowhere.yaml"], "nowhere.yaml"),
    ],
)
def test_a_faulty_option_is_named(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *words]) == USER_ERROR
    assert message in capsys.readouterr().err


def test_without_matplotlib_a_plot_is_refused_before_the_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    assert main(["plan", *LLAMA, *SMALL, "--plot", "plan.svg"]) == USER_ERROR
    assert "pip install 'specray[plots]'" in capsys.readouterr().err


def test_the_table_says_what_to_do_at_each_load() -> None:
    text = report.text(FACTS, OUTCOMES, advise(OUTCOMES), tpot_ms=15.0)

    assert "off: speculation brings 1.00" in text
    assert "80 full" in text
    assert "highest QPS tried that each keeps up with, at a p95 TPOT of 15 ms or less" in text
    assert "specray, 1 draft: 1 at $12.50 a million tokens" in text
    assert "  off: none" in text


def test_the_figure_has_titles_units_and_a_legend(tmp_path: Path) -> None:
    path = tmp_path / "plan.svg"
    plots.draw(path, FACTS, OUTCOMES)
    drawn = path.read_text(encoding="utf-8")

    for words in (
        "big on 1 × 4 × H100, drafted by small",
        "Speed-up over no speculation",
        "requests per second",
        "US$",
        "specray, 1 draft",
        "depth 3",
    ):
        assert words in drawn
