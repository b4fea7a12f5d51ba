import json
import shlex
from pathlib import Path

from specray.cli.bench.plan import System, make_plan
from specray.cli.bench.report import collect_meta, format_table, write_json
from specray.cli.bench.runner import Row


def make_row(system: System, tokens_per_s: float, ratio: float) -> Row:
    return Row(system, "chat", 8, 0.0, tokens_per_s, ratio, (tokens_per_s,), 160)


ROWS = [make_row("off", 100.0, 1.0), make_row("specray", 234.56, 2.346)]


def test_the_file_holds_meta_plan_and_rows(tmp_path: Path) -> None:
    path = tmp_path / "results/new/result.json"

    write_json(path, collect_meta(["bench", "--quick"]), make_plan(is_quick=True), ROWS)

    content = json.loads(path.read_text())
    assert set(content) == {"meta", "plan", "rows"}
    assert set(content["meta"]) == {"commit", "machine", "date", "command"}
    assert content["meta"]["command"] == "specray bench --quick"
    assert content["plan"]["window_s"] == 5.0
    assert content["rows"][1]["system"] == "specray"
    assert content["rows"][1]["ratio_to_off"] == 2.346


def test_a_command_can_be_given_to_a_shell_again() -> None:
    words = ["--acceptance", "0.8, 0.7", "--load", "it's"]

    assert shlex.split(collect_meta(words)["command"]) == ["specray", *words]
    command = collect_meta(words, "python -m loadtest.any")["command"]
    assert shlex.split(command) == ["python", "-m", "loadtest.any", *words]


def test_the_table_shows_off_beside_on() -> None:
    heading, line = format_table(ROWS).splitlines()

    assert heading.split()[-1] == "ratio"
    assert line.split() == ["chat", "8", "0", "100.0", "234.6", "2.35"]
