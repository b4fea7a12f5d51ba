import json
import logging
import time
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from specray.control.hardware import HardwareProfile
from specray.control.roofline import ModelShape, Roofline, StepLoad
from specray.control.step_time import StepTimeModel
from specray.control.step_time_file import StepTimeFile

KEY = {"model": "m", "hardware": "H100"}
LOAD = StepLoad(4, 4, 100)


def learnt() -> StepTimeModel:
    model = StepTimeModel()
    for _ in range(20):
        model.observe(LOAD, 0.05)
    return model


def on_cores(bandwidth: float) -> StepTimeModel:
    cores = HardwareProfile("cpu, 2 threads", bandwidth, {"float32": 1e11}, bandwidth)
    return StepTimeModel(Roofline(ModelShape(1e8, 4e8, 1e4, 12, 512, "float32"), cores))


def only_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def test_the_next_start_knows_what_this_one_learnt(tmp_path: Path) -> None:
    StepTimeFile(KEY, tmp_path / "new").save(learnt())
    model = StepTimeModel()
    StepTimeFile(dict(reversed(KEY.items())), tmp_path / "new").load(model)

    assert model.step_s(LOAD) == pytest.approx(0.05, rel=0.05)


def test_other_hardware_begins_anew(tmp_path: Path) -> None:
    StepTimeFile(KEY, tmp_path).save(learnt())
    model = StepTimeModel()
    StepTimeFile(KEY | {"hardware": "H200"}, tmp_path).load(model)

    assert model.step_s(LOAD) == 0


def test_a_prior_comes_back_with_what_was_learnt_against_it(tmp_path: Path) -> None:
    model = on_cores(9.1e9)
    for _ in range(20):
        model.observe(LOAD, 0.05)
    StepTimeFile(KEY, tmp_path).save(model)
    hardware = StepTimeFile(KEY, tmp_path).read_hardware()
    assert hardware is not None
    again = on_cores(hardware.bandwidth)
    StepTimeFile(KEY, tmp_path).load(again)

    assert hardware.bandwidth == 9.1e9
    assert hardware.flops("float32") == 1e11
    assert again.step_s(LOAD) == pytest.approx(0.05, rel=0.05)


def test_without_a_file_or_a_prior_no_hardware_comes_back(tmp_path: Path) -> None:
    assert StepTimeFile(KEY, tmp_path).read_hardware() is None
    StepTimeFile(KEY, tmp_path).save(learnt())
    assert StepTimeFile(KEY, tmp_path).read_hardware() is None


def test_what_was_learnt_against_another_prior_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    learnt_model = on_cores(9.1e9)
    for _ in range(20):
        learnt_model.observe(LOAD, 0.5)
    StepTimeFile(KEY, tmp_path).save(learnt_model)
    others = on_cores(8.7e9), StepTimeModel()
    begun_s = [model.step_s(LOAD) for model in others]
    for model in others:
        StepTimeFile(KEY, tmp_path).load(model)

    assert [model.step_s(LOAD) for model in others] == begun_s
    assert caplog.text.count("the prior of other hardware") == 2


def test_a_mixture_begins_anew_where_experts_were_not_told_apart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dense = ModelShape(1e8, 4e8, 1e4, 12, 512, "float32")
    cores = HardwareProfile("cpu, 2 threads", 9.1e9, {"float32": 1e11}, 9.1e9)
    before = StepTimeModel(Roofline(dense, cores))
    for _ in range(20):
        before.observe(LOAD, 0.5)
    StepTimeFile(KEY, tmp_path).save(before)
    file = only_file(tmp_path)
    content = json.loads(file.read_text())
    del content["model"]["experts"]  # as files of earlier versions lack it
    file.write_text(json.dumps(content))
    mixture = replace(dense, expert_bytes=3e8, idle_share=0.75)
    after, same = (StepTimeModel(Roofline(shape, cores)) for shape in (mixture, dense))
    begun_s = after.step_s(LOAD)
    for model in (after, same):
        StepTimeFile(KEY, tmp_path).load(model)

    assert after.step_s(LOAD) == begun_s
    assert "a model with other experts" in caplog.text
    assert same.step_s(LOAD) == pytest.approx(0.5, rel=0.15)


def test_a_first_start_is_nothing_to_talk_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    StepTimeFile(KEY, tmp_path).load(StepTimeModel())

    assert not caplog.records


def test_a_start_without_steps_leaves_the_next_nothing_to_talk_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for prior in (StepTimeModel(), on_cores(9.1e9)):
        StepTimeFile(KEY, tmp_path).save(prior)
        StepTimeFile(KEY, tmp_path).load(deepcopy(prior))

    assert not caplog.records


def spoilt(path: Path, kind: str) -> None:
    content = json.loads(path.read_text())
    if kind == "cut":
        path.write_text(path.read_text()[:50])
    elif kind == "binary":
        path.write_bytes(b"\xff\xfe\x00")
    elif kind == "other features":
        content["model"]["features"] = ["a"]
        path.write_text(json.dumps(content))
    elif kind == "of before hardware was kept":
        del content["model"]["hardware"]
        path.write_text(json.dumps(content))
    elif kind == "no hardware":
        content["model"]["hardware"] = {"name": "?", "peak_flops": {}}
        path.write_text(json.dumps(content))
    elif kind == "other shape":
        content["model"]["squares"] = [[1.0]]
        path.write_text(json.dumps(content))
    elif kind == "no solution":
        content["model"]["penalties"] = [0.0] * len(content["model"]["penalties"])
        content["model"]["squares"] = (0 * np.array(content["model"]["squares"])).tolist()
        path.write_text(json.dumps(content))
    elif kind == "not-a-number":
        content["model"]["start"][0] = float("nan")
        path.write_text(json.dumps(content))
    else:
        path.write_text(kind)


@pytest.mark.parametrize(
    "kind",
    [
        *("cut", "binary", "other features", "other shape", "no solution", "not-a-number"),
        *("of before hardware was kept", "no hardware"),
        *("[]", "{}", '{"model": 3}'),
    ],
)
def test_a_spoilt_file_is_passed_over_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    StepTimeFile(KEY, tmp_path).save(learnt())
    spoilt(only_file(tmp_path), kind)
    model = StepTimeModel()
    with caplog.at_level(logging.WARNING):
        StepTimeFile(KEY, tmp_path).load(model)

    assert StepTimeFile(KEY, tmp_path).read_hardware() is None
    assert model.step_s(LOAD) == 0
    assert len(caplog.records) == 1
    assert str(only_file(tmp_path)) in caplog.text


def test_it_saves_now_and_then(tmp_path: Path) -> None:
    file, model = StepTimeFile(KEY, tmp_path), learnt()
    for _ in range(999):
        file.note_step(model)
    assert not list(tmp_path.iterdir())
    file.note_step(model)
    deadline = time.monotonic() + 30  # a thread writes it
    while not list(tmp_path.glob("*.json")):
        assert time.monotonic() < deadline
        time.sleep(0.01)

    assert only_file(tmp_path).suffix == ".json"


def test_a_disk_that_refuses_costs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    StepTimeFile(KEY, tmp_path / "file").save(learnt())

    assert "can't be kept" in caplog.text
