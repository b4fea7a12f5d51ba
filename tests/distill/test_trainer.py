"""Training resumes where it was, learns, and keeps the best."""

import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from specray.distill import best, trainer
from specray.distill.checkpoint import Progress
from specray.distill.dataset import StoredAnswers
from specray.distill.learner import Texts
from specray.distill.provenance import read_curve
from specray.distill.shards import Answer, Answers, save_shard
from specray.distill.trainer import Trainer, TrainPlan
from specray.distill.work import WorkFolder
from specray.errors import InvalidConfigError
from tests.distill.conftest import Backend, fail_to_compile, make_learner, run_as_it_is


def make_trainer(
    target: Path,
    answers: list[Answer],
    folder: Path,
    tokens: int = 400,
    eval_every_s: float = 300.0,
    stored: Answers | None = None,
    compiling: str = "auto",
    backend: Backend = fail_to_compile,
) -> Trainer:
    plan = TrainPlan(
        tokens=tokens, batch_tokens=64, rate=3e-3, save_every_s=0, eval_every_s=eval_every_s,
        compiling=compiling,
    )  # fmt: skip
    texts = Texts(answers if stored is None else stored)
    learner = make_learner(target, answers, backend)
    return Trainer(learner, texts, Texts(answers[:4]), plan, WorkFolder(folder))


def killed_after(steps: int) -> Callable[[Progress], None]:
    def kill(progress: Progress) -> None:
        if progress.step == steps:
            raise RuntimeError("killed")

    return kill


def test_a_killed_training_ends_as_if_it_had_not_been(
    target: Path, answers: list[Answer], tmp_path: Path
) -> None:
    make_trainer(target, answers, tmp_path / "whole").run()
    for steps in (5, 9):
        with pytest.raises(RuntimeError, match="killed"):
            make_trainer(target, answers, tmp_path / "killed").run(killed_after(steps))
    resumed = make_trainer(target, answers, tmp_path / "killed")
    assert resumed.progress.step == 8  # the callback came before the ninth step was saved
    resumed.run()

    whole, killed = (
        torch.load(tmp_path / name / "training/checkpoint.pt") for name in ("whole", "killed")
    )
    assert killed["progress"]["tokens"] == whole["progress"]["tokens"]
    assert killed["progress"]["epoch"] == whole["progress"]["epoch"]
    for name, weight in whole["layers"].items():
        assert torch.equal(weight, killed["layers"][name])


def test_a_killed_training_from_files_ends_like_one_from_memory(
    target: Path, answers: list[Answer], tmp_path: Path
) -> None:
    paths = [tmp_path / f"train-{i}.npz" for i in range(4)]
    for i, path in enumerate(paths):
        save_shard(path, answers[3 * i : 3 * i + 3])
    make_trainer(target, answers, tmp_path / "memory").run()

    with pytest.raises(RuntimeError, match="killed"):
        make_trainer(target, answers, tmp_path / "files", stored=StoredAnswers(paths)).run(
            killed_after(7)
        )
    resumed = make_trainer(target, answers, tmp_path / "files", stored=StoredAnswers(paths))
    assert resumed.progress.step == 6
    resumed.run()

    wanted, found = (
        torch.load(tmp_path / name / "training/checkpoint.pt") for name in ("memory", "files")
    )
    assert found["progress"]["step"] == wanted["progress"]["step"] > 7
    for name, weight in wanted["layers"].items():
        assert torch.equal(weight, found["layers"][name])


def test_an_interrupt_keeps_the_step_and_the_best(
    target: Path, answers: list[Answer], tmp_path: Path
) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.step == 3:
            raise KeyboardInterrupt

    make_trainer(target, answers, tmp_path).run(interrupt)

    assert make_trainer(target, answers, tmp_path).progress.step == 3
    assert WorkFolder(tmp_path).best.is_file()


def test_training_lowers_the_held_out_loss(
    target: Path, answers: list[Answer], tmp_path: Path
) -> None:
    make_trainer(target, answers, tmp_path, tokens=1).run()
    make_trainer(target, answers, tmp_path, tokens=800).run()

    curve = read_curve(WorkFolder(tmp_path))
    assert curve[-1]["tokens"] >= 800
    assert curve[-1]["loss"] < 0.8 * curve[0]["loss"]


def test_figures_of_steps_that_were_lost_are_forgotten(
    target: Path, answers: list[Answer], tmp_path: Path
) -> None:
    work = WorkFolder(tmp_path)
    make_trainer(target, answers, tmp_path, tokens=100).run()
    work.curve.write_text(work.curve.read_text() + '{"step": 99, "tokens": 9999}\n')

    make_trainer(target, answers, tmp_path, tokens=100)

    assert [point["step"] for point in read_curve(work)] == [read_curve(work)[-1]["step"]]


def test_figures_of_a_training_without_a_checkpoint_are_forgotten(
    target: Path, answers: list[Answer], tmp_path: Path
) -> None:
    """A short one is measured before it is first saved."""
    work = WorkFolder(tmp_path)
    make_trainer(target, answers, tmp_path, tokens=100).run()
    work.checkpoint.unlink()

    make_trainer(target, answers, tmp_path, tokens=100).run()

    assert len(read_curve(work)) == 1


def test_more_answers_begin_a_new_epoch(
    target: Path, answers: list[Answer], tmp_path: Path
) -> None:
    make_trainer(target, answers[:6], tmp_path, tokens=100).run()
    before = make_trainer(target, answers[:6], tmp_path).progress

    after = make_trainer(target, answers, tmp_path).progress

    assert (after.epoch, after.batch, after.num_answers) == (before.epoch + 1, 0, 12)


def test_a_best_that_no_checkpoint_knows_of_is_not_replaced_by_worse(
    target: Path, answers: list[Answer], tmp_path: Path
) -> None:
    work = WorkFolder(tmp_path)
    make_trainer(target, answers, tmp_path, tokens=800).run()
    loss, layers = read_curve(work)[-1]["loss"], work.best.read_bytes()
    work.checkpoint.unlink()

    resumed = make_trainer(target, answers, tmp_path, tokens=1)
    assert resumed.progress.best == loss
    resumed.run()

    assert read_curve(work)[-1]["loss"] > loss
    assert work.best.read_bytes() == layers


def test_an_interrupt_while_the_best_is_written_loses_nothing(
    target: Path, answers: list[Answer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def save_or_end(*args: Any) -> None:
        calls.append(args)
        if len(calls) == 1:
            raise KeyboardInterrupt
        save_file(*args)

    monkeypatch.setattr(best, "save_file", save_or_end)
    work = WorkFolder(tmp_path)

    make_trainer(target, answers, tmp_path, eval_every_s=0).run()

    assert len(calls) == 2
    loss = read_curve(work)[-1]["loss"]
    assert best.read_facts(work.best)["held_out_loss"] == loss
    assert torch.load(work.checkpoint)["progress"]["best"] == loss


def test_a_checkpoint_that_knows_a_better_best_than_there_is_does_not_keep_others_away(
    target: Path, answers: list[Answer], tmp_path: Path
) -> None:
    """As earlier versions left one after an interrupt."""
    work = WorkFolder(tmp_path)
    make_trainer(target, answers, tmp_path, tokens=1).run()
    state = torch.load(work.checkpoint)
    state["progress"]["best"] = 0.0
    torch.save(state, work.checkpoint)

    make_trainer(target, answers, tmp_path, tokens=800).run()

    assert best.read_facts(work.best)["tokens"] >= 800


def test_a_checkpoint_of_a_device_that_is_not_here_is_resumed(
    target: Path, answers: list[Answer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = WorkFolder(tmp_path).checkpoint
    make_trainer(target, answers, tmp_path, tokens=100).run()
    state = torch.load(checkpoint)
    with monkeypatch.context() as patch:  # so torch notes where each tensor is from
        patch.setattr("torch.serialization.location_tag", lambda _: "cuda:0")
        torch.save(state, checkpoint)

    resumed = make_trainer(target, answers, tmp_path, tokens=200)

    assert resumed.progress.step == state["progress"]["step"]
    resumed.run()


def test_a_checkpoint_of_other_layers_is_named(
    target: Path, answers: list[Answer], tmp_path: Path
) -> None:
    """As earlier versions left one, which trained a student's last layer only."""
    make_trainer(target, answers, tmp_path, tokens=1).run()
    checkpoint = WorkFolder(tmp_path).checkpoint
    state = torch.load(checkpoint)
    state["layers"] = {k: v for k, v in state["layers"].items() if k.startswith("0.")}
    torch.save(state, checkpoint)

    with pytest.raises(InvalidConfigError, match="1 layers were trained there .* the 3 to be"):
        make_trainer(target, answers, tmp_path)


def test_only_layers_are_trained(target: Path, answers: list[Answer], tmp_path: Path) -> None:
    make_trainer(target, answers, tmp_path, tokens=200).run()

    names = load_file(WorkFolder(tmp_path).best).keys()
    assert {name.partition(".")[0] for name in names} == {"0", "1", "2"}


def test_measuring_takes_a_small_part_of_a_training(
    target: Path, answers: list[Answer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, evaluate = [0.0], trainer.evaluate

    def slow(*args: Any) -> Any:
        now_s[0] += 0.5
        return evaluate(*args)

    def tick(_: Progress) -> None:
        now_s[0] += 1.0

    monkeypatch.setattr(trainer, "evaluate", slow)
    monkeypatch.setattr(trainer, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    make_trainer(target, answers, tmp_path, eval_every_s=0).run(tick)

    assert [point["step"] for point in read_curve(WorkFolder(tmp_path))][:3] == [1, 6, 11]


def test_a_finished_training_that_is_run_again_adds_no_figures(
    target: Path, answers: list[Answer], tmp_path: Path
) -> None:
    for _ in range(2):
        make_trainer(target, answers, tmp_path, tokens=100).run()

    assert len(read_curve(WorkFolder(tmp_path))) == 1


@pytest.mark.parametrize(
    ("compiling", "step_s", "is_compiled"),
    [("auto", 600.0, True), ("auto", 1.0, False), ("on", 1.0, True), ("off", 600.0, False)],
)
def test_layers_are_compiled_where_the_rest_of_the_training_is_long(
    target: Path,
    answers: list[Answer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    compiling: str,
    step_s: float,
    is_compiled: bool,
) -> None:
    made = make_trainer(target, answers, tmp_path, compiling=compiling)
    compiled_at = []
    make_slow(made, step_s, monkeypatch)
    monkeypatch.setattr(made._learner, "compile", lambda: compiled_at.append(made.progress.step))

    made.run()

    assert made.progress.step > 8
    assert compiled_at == ([1] if is_compiled else [])  # the first step is the warm-up


def test_a_resumed_training_with_little_left_is_not_compiled(
    target: Path, answers: list[Answer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = []

    def train(tokens: int) -> Progress:
        made = make_trainer(target, answers, tmp_path, tokens=tokens)
        make_slow(made, 600.0, monkeypatch)
        monkeypatch.setattr(made._learner, "compile", lambda: compiled.append(tokens))
        made.run()
        return made.progress

    first = train(400)
    second = train(first.tokens + 1)

    assert second.step == first.step + 1
    assert compiled == [400]


def make_slow(made: Trainer, step_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, accumulate = [0.0], made._learner.accumulate

    def slow(*args: Any) -> Any:
        now_s[0] += step_s
        return accumulate(*args)

    monkeypatch.setattr(made._learner, "accumulate", slow)
    monkeypatch.setattr(trainer, "time", SimpleNamespace(monotonic=lambda: now_s[0]))


@pytest.mark.usefixtures("nothing_compiled")
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # torch, to itself
def test_what_can_not_be_compiled_is_trained_as_it_is(
    target: Path, answers: list[Answer], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_trainer(target, answers, tmp_path / "plain", compiling="off").run()

    make_trainer(target, answers, tmp_path / "failing", compiling="on").run()

    (warning,) = (r.getMessage() for r in caplog.records if r.levelno == logging.WARNING)
    assert "goes on without compiled layers" in warning
    assert "no compiler here" in warning
    assert_trained_alike(tmp_path / "plain", tmp_path / "failing")


@pytest.mark.usefixtures("nothing_compiled")
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # torch, to itself
def test_a_killed_training_of_compiled_layers_ends_as_if_it_had_not_been(
    target: Path, answers: list[Answer], tmp_path: Path
) -> None:
    def make(folder: str) -> Trainer:
        return make_trainer(
            target, answers, tmp_path / folder, compiling="on", backend=run_as_it_is
        )

    make("whole").run()
    with pytest.raises(RuntimeError, match="killed"):
        make("killed").run(killed_after(5))
    resumed = make("killed")
    assert resumed.progress.step == 4
    resumed.run()

    assert_trained_alike(tmp_path / "whole", tmp_path / "killed")


def assert_trained_alike(one: Path, other: Path) -> None:
    wanted, found = (torch.load(WorkFolder(folder).checkpoint) for folder in (one, other))
    assert found["progress"]["step"] == wanted["progress"]["step"]
    assert found["progress"]["best"] == wanted["progress"]["best"]
    assert found["layers"].keys() == wanted["layers"].keys()
    for name, weight in wanted["layers"].items():
        assert torch.equal(weight, found["layers"][name])
