import json
from pathlib import Path

import pytest

from specray.cli.bench.plan import Cell
from specray.cli.bench.results import Condition, Measurement, Results, Setting, measured
from specray.errors import InvalidConfigError

META = {"commit": "abc", "command": "specray bench --peers"}
ALONE = Condition(Cell("chat", 1, 0.0))
DEEP = Condition(Cell("chat", 8, 1.0), setting=Setting(3, 2), rtt_ms=5.0, draft_share=0.6)


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "new" / "peers.json"
    first = Results(path, "peers", META)
    first.add([measured("vllm", 1, ALONE, 17.5), measured("specray", 2, DEEP, 31.256)])
    first.fail("vllm-suffix", "not installed")

    again = Results(path, "peers", META)

    assert again.measurements == first.measurements
    assert again.failures == {"vllm-suffix": "not installed"}
    assert again.speeds("specray", DEEP) == {2: 31.26}
    assert not (tmp_path / "new" / "peers.partial").exists()


def test_a_row_is_flat_and_every_run_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "peers.json"
    for speed in (1.0, 2.0):
        Results(path, "peers", META).add([measured("vllm", 1, DEEP, speed)])

    content = json.loads(path.read_text())

    assert content["runs"] == [META, META]
    row = content["measurements"][0]
    assert row.pop("measured_at").endswith("+00:00")
    assert row == {
        "system": "vllm",
        "round_number": 1,
        "tokens_per_s": 1.0,
        "workload": "chat",
        "concurrency": 8,
        "temperature": 1.0,
        "depth": 3,
        "num_threads": 2,
        "rtt_ms": 5.0,
        "draft_share": 0.6,
    }


def test_results_of_another_kind_are_not_mixed_in(tmp_path: Path) -> None:
    path = tmp_path / "peers.json"
    Results(path, "peers", META).add([])

    with pytest.raises(InvalidConfigError, match="does not hold results of network"):
        Results(path, "network", META)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("config", "results of another config file"),
        ("commit", "results of another commit"),
        ("machine", "results from another machine"),
    ],
)
def test_results_that_say_nothing_beside_ours_are_not_mixed_in(
    tmp_path: Path, name: str, message: str
) -> None:
    path = tmp_path / "peers.json"
    Results(path, "peers", META | {name: "a"}).add([])
    Results(path, "peers", META | {name: "a"}).add([])

    with pytest.raises(InvalidConfigError, match=message):
        Results(path, "peers", META | {name: "b"})


def test_what_the_measurements_come_to_is_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "peers.json"
    results = Results(path, "peers", META)
    results.conclude([])
    assert not path.exists()  # as there is nothing to conclude from
    results.add([measured("vllm", 1, ALONE, 17.5)])
    results.conclude([{"system": "vllm", "tokens_per_s": 17.5}])

    assert json.loads(path.read_text())["summary"] == [{"system": "vllm", "tokens_per_s": 17.5}]


def test_what_is_no_json_is_named(tmp_path: Path) -> None:
    path = tmp_path / "peers.json"
    path.write_text("no")

    with pytest.raises(InvalidConfigError, match=r"peers\.json: no JSON"):
        Results(path, "peers", META)


def test_a_round_has_what_was_measured_in_it_under_just_these_conditions() -> None:
    results = Results(None, "peers", META)
    results.add([Measurement("vllm", 1, ALONE, 9.0, "now"), Measurement("vllm", 2, DEEP, 8.0, "")])

    assert results.has("vllm", 1, [ALONE])
    assert not results.has("vllm", 1, [ALONE, DEEP])
    assert not results.has("specray", 1, [ALONE])
    assert results.conditions("vllm") == [ALONE, DEEP]


def test_the_search_is_no_condition_of_the_rounds() -> None:
    results = Results(None, "peers", META)
    results.add([Measurement("vllm", 0, DEEP, 9.0, "now")])

    assert results.conditions("vllm") == []


def test_a_failure_comes_down_to_the_last_error_in_its_log() -> None:
    results = Results(None, "peers", META)
    log = "it ended with code 1:\nValueError: inner\nsome frames\nImportError: outer\nbye"
    results.fail("vllm-suffix", log)
    results.fail("hf", "no memory\nat all")

    assert results.reason("vllm-suffix") == "ImportError: outer"
    assert results.reason("hf") == "no memory"
