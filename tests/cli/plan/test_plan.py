import argparse
import json
import sys
from pathlib import Path

import pytest

from specray.cli import USER_ERROR, main
from specray.cli.bench.report import collect_meta
from specray.cli.plan import add_arguments, plots, report
from specray.cli.plan.scenario import Facts, make_scenario
from specray.simulate.sizing import Outcome, Scenario, Trial, advise
from specray.simulate.summary import Percentiles, Summary

LLAMA = ["--target", "meta-llama/Llama-3.3-70B-Instruct", "--hardware", "H100", "--tp", "4"]
LLAMA += ["--draft", "meta-llama/Llama-3.2-1B-Instruct"]
FP8 = "meta-llama/Llama-3.1-405B-Instruct-FP8"
SMALL = ["--qps", "2", "--drafts", "1", "--depths", "3", "--seconds", "2", "--jobs", "1"]
SMALL += ["--prompt-tokens", "50", "--answer-tokens", "20", "--spread", "0"]
FACTS = Facts("big", "4 × H100", "small", "1 × L40S", 1, "0.7", "poisson", 5, 0)


def summary(tpot_s: float, tokens_per_s: float = 100.0) -> Summary:
    tail = Percentiles(tpot_s, tpot_s, tpot_s)
    return Summary(
        1000, 10, 100.0, tokens_per_s, tail, tail, tpot_s, 2.0, 0.5, 2.0, 3.0, 0.8, 0.1, 0.2, tail
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


@pytest.mark.parametrize(("seconds", "is_warned"), [("0.2", True), ("20", False)])
def test_a_trial_too_short_for_its_answers_is_said_to_be(
    capsys: pytest.CaptureFixture[str], seconds: str, is_warned: bool
) -> None:
    words = ["plan", *LLAMA, *SMALL]
    words[words.index("--seconds") + 1] = seconds

    assert main(words) == 0
    assert (f"--seconds {seconds}: below" in capsys.readouterr().err) is is_warned


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
    first, again = json.loads(answer), json.loads(capsys.readouterr().out)

    assert all(first[name] == again[name] for name in ("facts", "outcomes", "advice"))


def test_a_plan_does_not_depend_on_the_number_of_processes(
    answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *LLAMA, *SMALL, "--jobs", "2", "--json"]) == 0
    first, again = json.loads(answer), json.loads(capsys.readouterr().out)

    assert all(first[name] == again[name] for name in ("facts", "outcomes", "advice"))


def test_a_plan_says_where_it_comes_from_as_other_results_do(answer: str) -> None:
    assert json.loads(answer)["meta"].keys() == collect_meta([]).keys()


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
        ([*LLAMA, "--tp", "1"], "meta-llama/Llama-3.3-70B-Instruct leaves room for 0 tokens"),
        (["deployments/llama70b-eagle3.yaml"], "draft.method none: there are no drafts to plan"),
        (["deployments/llama70b.yaml", "--tp", "1"], "leaves room for 0 tokens of KV cache on 1 ×"),
        ([*LLAMA, "--tp", "1", "--hardware", "h100"], "0 tokens of KV cache on 1 × h100, and a re"),
        ([*LLAMA, "--tp", "1", "--hardware", "NVIDIA H100 80GB HBM3"], "leaves room for 0 tokens"),
        ([*LLAMA, "--target", FP8, "--tp", "1", "--hardware", "MI300X"], "room for 0 tokens"),
        ([*LLAMA, "--prompt-tokens", "1e7"], "shorter requests with --prompt-tokens and --answer"),
        ([*LLAMA, "--draft", "bundled:none"], "--draft: the size of bundled:none is not known"),
        ([*LLAMA, "--qps", "1,x"], "--qps: '1,x' is no list of numbers"),
        ([*LLAMA, "--qps", "0"], "--qps: 0.0 is not between"),
        ([*LLAMA, "--drafts", "0"], "--drafts: 0 is not between 1 and 64"),
        ([*LLAMA, "--depths", "99"], "--depths: 99 is not between 1 and 64"),
        ([*LLAMA, "--acceptance", "1.5"], "acceptance: 1.5 must be"),
        ([*LLAMA, "--prompt-tokens", "-1"], "--prompt-tokens: -1.0 must be above 0"),
        ([*LLAMA, "--answer-tokens", "inf"], "--answer-tokens: inf must be above 0"),
        ([*LLAMA, "--gpu-price", "0"], "--gpu-price: 0.0 must be above 0"),
        ([*LLAMA, "--verify-overhead-ms", "-1"], "--verify-overhead-ms: -1.0 must be 0 or more"),
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


def scenario(*words: str) -> tuple[Scenario, Facts]:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return make_scenario(parser.parse_args(words))


def num_kv_tokens(*words: str) -> int:
    """The room of the KV cache that is simulated."""
    return scenario(*words)[0].cluster.target.num_kv_tokens


@pytest.mark.parametrize(
    "words", [["llama70b-eagle3.yaml"], ["local.yaml", "--hardware", "L40S"]], ids=lambda w: w[0]
)
def test_a_draft_that_the_file_has_not_is_paid_for(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    file, *more = words

    def cost(*price: str) -> float:
        draft = ["--draft", LLAMA[-1], *price]
        assert main(["plan", f"deployments/{file}", *more, *draft, *SMALL, "--json"]) == 0
        outcomes = json.loads(capsys.readouterr().out)["outcomes"]
        (found,) = (o for o in outcomes if o["trial"]["system"] == "specray")
        return float(found["usd_per_million"])

    assert cost("--draft-gpu-price", "30") > 1.5 * cost()


@pytest.mark.parametrize(
    ("words", "gpus"),
    [
        (["local-hybrid.yaml", "--hardware", "L40S"], 1.0),  # planned on a GPU, so paid as one
        (["local.yaml", "--hardware", "L40S"], 0.0),
        (["llama70b-3b.yaml", "--draft", "prompt_lookup"], 0.0),
    ],
)
def test_a_draft_costs_the_gpu_that_it_is_simulated_on(words: list[str], gpus: float) -> None:
    found, facts = scenario(f"deployments/{words[0]}", *words[1:])

    assert found.gpus_per_draft == gpus
    assert facts.draft_gpus.startswith("1 × ") == bool(gpus)


@pytest.mark.parametrize(
    "words",
    [["local-hybrid.yaml"], ["llama70b-eagle3.yaml", "--draft", LLAMA[-1]]],
    ids=lambda w: w[0],
)
def test_a_draft_s_gpu_is_the_target_s_where_nobody_names_it(words: list[str]) -> None:
    file, *more = words

    _, facts = scenario(f"deployments/{file}", *more, "--hardware", "H200")

    assert facts.draft_gpus == "1 × H200"


def test_short_requests_keep_all_in_layers_with_a_window_too(tmp_path: Path) -> None:
    config = {"model_type": "mistral", "dtype": "bfloat16", "sliding_window": 4096}
    (tmp_path / "config.json").write_text(json.dumps(config))
    words = ["--target", str(tmp_path), "--hardware", "H100", "--draft", LLAMA[-1]]
    short = num_kv_tokens(*words, "--prompt-tokens", "900", "--answer-tokens", "100")
    long = num_kv_tokens(*words, "--prompt-tokens", "99000", "--answer-tokens", "1000")

    per_token = 32 * 2 * 8 * 128 * 2
    assert 0.5 * 80 < short * per_token / 2**30 < 80  # GiB
    assert long > 7 * short


def test_the_file_s_options_hold_on_other_gpus(tmp_path: Path) -> None:
    text = Path("deployments/llama70b.yaml").read_text(encoding="utf-8")
    file, other = "deployments/llama70b.yaml", tmp_path / "fp8.yaml"
    share = "gpu_memory_utilization: 0.9"
    other.write_text(text.replace(share, f"{share}\n          kv_cache_dtype: fp8"), "utf-8")

    assert num_kv_tokens(file, "--tp", "4") == num_kv_tokens(file)
    assert num_kv_tokens(str(other), "--tp", "8") // 2 == num_kv_tokens(file, "--tp", "8")


def test_a_checkpoint_in_float32_has_the_room_of_bfloat16() -> None:
    model = ["--target", "bundled:smollm2-135m-instruct", "--draft", "prompt_lookup"]
    kv_bytes = 2 * 30 * 3 * 64 * 2  # K and V, layers, heads, dim, bytes

    found = num_kv_tokens(*model, "--hardware", "L40S")

    assert found * kv_bytes == pytest.approx(0.92 * 46_068 * 2**20, rel=0.06)


def test_the_longest_recorded_request_has_to_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = tmp_path / "arrivals.jsonl"
    entries = [{"at_s": n, "prompt_tokens": 10**n, "answer_tokens": 100} for n in (1, 6)]
    recording.write_text("\n".join(map(json.dumps, entries)), "utf-8")

    assert main(["plan", *LLAMA, "--arrivals", str(recording)]) == USER_ERROR
    told = capsys.readouterr().err
    assert "the longest request takes 1000100; " in told
    assert "shorter requests with --arrivals" in told


def test_a_recording_has_its_own_lengths(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = tmp_path / "arrivals.jsonl"
    entries = [{"at_s": n / 2, "prompt_tokens": 40, "answer_tokens": 20} for n in range(9)]
    recording.write_text("\n".join(map(json.dumps, entries)), "utf-8")
    words = [*LLAMA, *SMALL, "--prompt-tokens", "1e7", "--arrivals", str(recording)]

    assert main(["plan", *words, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["facts"]["load"].endswith("prompts of 40, answers of 20 tokens")
    assert plan["advice"][0]["qps"] == 2.0


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
