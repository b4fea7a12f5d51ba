import sys
from pathlib import Path

import pytest

from specray.cli import USER_ERROR, main
from specray.cli.bench.results import Results


@pytest.fixture(autouse=True)
def no_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specray.cli.bench.deployment.resolve", lambda source: source)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--only", "vllm"], "are for --peers and --network"),
        (["--minutes", "3"], "are for --peers and --network"),
        (["--peers", "--plots", "x"], "figures of --network only"),
        (["--network", "--url", "http://x"], "start their systems themselves"),
        (["--peers", "--config", "nowhere.yaml"], "nowhere.yaml"),
        (["--peers", "--only", "nope", "--minutes", "0"], "--only nope"),
        (["--peers", "--network"], "not allowed with"),
        (["--sweep", "--temperature", "0.7"], "--temperature: a sweep is greedy"),
        (["--temperature", "-1"], "-1 is not within 0 and 2"),
        (["--temperature", "warm"], "warm"),
        (["--rounds", "0"], "0 is not a whole number, 1 or more"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    with pytest.raises(SystemExit, match=str(USER_ERROR)):
        raise SystemExit(main(["bench", *words]))
    assert message in capsys.readouterr().err


def test_without_matplotlib_figures_are_refused_before_the_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    assert main(["bench", "--network", "--plots", "x", "--minutes", "0"]) == USER_ERROR
    assert "--plots: matplotlib is not installed" in capsys.readouterr().err


@pytest.mark.parametrize("what", ["--peers", "--network"])
def test_what_there_is_no_time_for_is_left_for_the_next_time(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results.json"

    assert main(["bench", what, "--minutes", "0", "--json", str(path)]) == 0

    assert "the same command goes on with them" in capsys.readouterr().out
    assert not path.exists()


def test_a_quick_result_is_not_continued_in_full(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results.json"
    Results(path, "peers, quick", {}).add([])

    assert main(["bench", "--peers", "--quick", "--minutes", "0", "--json", str(path)]) == 0
    assert main(["bench", "--peers", "--minutes", "0", "--json", str(path)]) == USER_ERROR
    assert "does not hold results of peers;" in capsys.readouterr().err


def test_a_missing_package_is_said_and_the_rest_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("specray.cli.bench.systems.find_spec", lambda _name: None)
    words = ["bench", "--peers", "--quick", "--only", "vllm-suffix"]

    assert main([*words, "--json", str(tmp_path / "results.json")]) == 0

    said = capsys.readouterr().out
    assert "| vllm-suffix (failed: the package arctic-inference is not installed) |" in said
