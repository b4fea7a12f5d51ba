import json
from pathlib import Path

import pytest
import yaml

from specray.cli import main

LOCAL = Path(__file__).parents[3] / "deployments" / "local.yaml"


def test_a_file_that_can_be_served_ends_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(LOCAL)]) == 0
    assert capsys.readouterr().out.endswith("local.yaml: no faults, 0 warnings\n")


def test_json_is_all_that_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(LOCAL), "--json"]) == 0

    report = json.loads(capsys.readouterr().out)
    (application,) = report["applications"]
    assert application["pools"][2]["name"] == "target:smollm2-135m-instruct"
    assert application["targets"]["smollm2-135m-instruct"]["size"]["num_layers"] == 30


def test_a_faulty_file_ends_with_its_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "faulty.yaml"
    file.write_text(LOCAL.read_text().replace("max_depth: 5", "max_depth: 500"))

    assert main(["check", str(file)]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert "faulty.yaml: applications.specray: speculation.max_depth: " in output.err


def test_what_a_changed_file_would_do_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "changed.yaml"
    changed = yaml.safe_load(LOCAL.read_text())
    changed["applications"][0]["args"]["speculation"]["max_depth"] = 4
    changed["applications"][0]["deployments"] = [
        {"name": "controller", "user_config": {"is_enabled": False}},
        {"name": "draft", "num_replicas": 2},
    ]
    file.write_text(yaml.safe_dump(changed))

    assert main(["check", str(file), "--from", str(LOCAL)]) == 0
    told = capsys.readouterr().out
    assert f"against {LOCAL}:" in told
    assert "live, within seconds: applications.specray.deployments.controller.user_config" in told
    assert "in place, replicas stay: applications.specray.deployments.draft.num_replicas" in told
    assert "by replacing replicas: applications.specray.args.speculation.max_depth" in told
    assert told.count("num_replicas") == 1

    assert main(["check", str(LOCAL), "--from", str(LOCAL), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["changes"] == {
        "live": [],
        "in_place": [],
        "beyond": [],
    }
    assert main(["check", str(LOCAL), "--from", str(tmp_path / "none.yaml")]) == 2
    assert "none.yaml" in capsys.readouterr().err
