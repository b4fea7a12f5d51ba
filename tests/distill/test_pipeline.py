"""All steps on a tiny target: a draft comes out, and kills change nothing."""

import dataclasses
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from specray.distill import STEPS, DistillSettings, Pipeline, engines, pipeline, training
from specray.distill.generation import Completion, Generator, SampleRequest
from specray.distill.prompts import load_prompts
from specray.distill.shards import find_shards, load_shard
from specray.distill.student_choice import trained_layers
from specray.distill.work import WorkFolder
from specray.errors import InvalidConfigError
from specray.models.draft_layers import DRAFT_FILE, read_layers
from tests.distill.conftest import few_texts, make_tokenizer


def make_settings(target: Path, folder: Path, **changes: Any) -> DistillSettings:
    settings = DistillSettings(
        name="tiny",
        target=str(target),
        out=folder / "draft",
        work=folder / "work",
        tokens=600,
        num_prompts=24,
        num_held_out=4,
        max_answer_tokens=24,
        num_layers=3,
        num_shared=1,
        head_tokens=70,
        batch_tokens=256,
    )
    return dataclasses.replace(settings, **changes)


def run(settings: DistillSettings, step: str = "all") -> None:
    Pipeline(settings, "specray distill tiny draft", few_texts).run(step)


def longest_prompt(settings: DistillSettings) -> int:
    """Tokens of the longest prompt that was trained on."""
    shards = find_shards(WorkFolder(settings.work), "train")
    return max(len(answer.prompt_ids) for shard in shards for answer in load_shard(shard))


@pytest.fixture(scope="module")
def made(target: Path, tmp_path_factory: pytest.TempPathFactory) -> DistillSettings:
    settings = make_settings(target, tmp_path_factory.mktemp("made"))
    run(settings)
    return settings


def test_the_draft_loads_and_has_what_it_shares(made: DistillSettings, target: Path) -> None:
    draft = AutoModelForCausalLM.from_pretrained(made.out)
    whole = AutoModelForCausalLM.from_pretrained(target)
    tokenizer = AutoTokenizer.from_pretrained(made.out)

    assert draft.config.num_hidden_layers == 3
    assert torch.equal(draft.model.embed_tokens.weight, whole.model.embed_tokens.weight)
    shared = draft.model.layers[0].mlp.up_proj.weight
    assert torch.equal(shared, whole.model.layers[0].mlp.up_proj.weight)
    trained = draft.model.layers[2].mlp.up_proj.weight
    assert not any(torch.equal(trained, layer.mlp.up_proj.weight) for layer in whole.model.layers)
    assert tokenizer.chat_template


def test_it_says_what_it_may_propose_and_where_it_is_from(made: DistillSettings) -> None:
    facts = json.loads((made.out / DRAFT_FILE).read_text())

    assert 0 < len(facts["head_token_ids"]) <= 70
    assert facts["commands"] == ["specray distill tiny draft"]
    assert facts["trained_tokens"] >= 600
    assert facts["versions"]["torch"] == torch.__version__
    report = json.loads((made.out / "report.json").read_text())
    assert {(kind["kind"], kind["mode"]) for kind in report["kinds"]} >= {
        ("all", "greedy"),
        ("all", "sampled"),
        ("code", "greedy"),
    }
    assert "| all | greedy |" in (made.out / "REPORT.md").read_text()


def test_held_out_prompts_are_not_trained_on(made: DistillSettings) -> None:
    prompts = load_prompts(WorkFolder(made.work))
    words = [prompt.messages[-1]["content"] for prompt in prompts]

    assert len(set(words)) == len(words)
    assert {prompt.split for prompt in prompts} == {"train", "held_out"}


def test_only_the_trained_layers_can_be_exported(made: DistillSettings, tmp_path: Path) -> None:
    run(dataclasses.replace(made, out=tmp_path / "layers", layers_only=True), "export")

    layers = read_layers(tmp_path / "layers")
    draft = AutoModelForCausalLM.from_pretrained(made.out)
    assert list(layers.cut_from) == json.loads((made.work / "student.json").read_text())["layers"]
    assert layers.trained.keys() == {1, 2}
    for index, weights in layers.trained.items():
        for name, weight in draft.model.layers[index].state_dict().items():
            assert torch.allclose(weights[name], weight, atol=0.02)


def test_the_users_prompts_and_student_are_taken(
    target: Path, made: DistillSettings, tmp_path: Path
) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"Why {i}?"}) + "\n" for i in range(9)))
    settings = make_settings(
        target,
        tmp_path,
        tokens=40,
        prompt_files=(file,),
        only_files=True,
        student=str(made.out),
    )

    run(settings)

    prompts = load_prompts(WorkFolder(settings.work))
    trained = [p for p in prompts if p.split == "train"]
    assert {prompt.kind for prompt in trained} == {"user"}
    assert len(trained) == 8
    assert [p.kind for p in prompts if p.split == "held_out"].count("user") == 1
    figures = {kind["kind"]: kind for kind in read_report(settings)["kinds"]}
    assert figures["user"]["num_answers"] == 1
    assert AutoModelForCausalLM.from_pretrained(settings.out).config.num_hidden_layers == 3
    assert trained_layers(WorkFolder(settings.work)).keys() == {0, 1, 2}
    with pytest.raises(InvalidConfigError, match="--layers-only: the student was not cut"):
        run(dataclasses.replace(settings, layers_only=True), "export")


def test_options_that_come_too_late_are_refused(made: DistillSettings, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="prompts was done with --num-prompts"):
        run(dataclasses.replace(made, num_prompts=4321), "prompts")
    with pytest.raises(InvalidConfigError, match="train was done with --num-shared"):
        run(dataclasses.replace(made, num_shared=2), "train")
    with pytest.raises(InvalidConfigError, match="train was done with --num-shared 1, not 0"):
        run(dataclasses.replace(made, num_shared=0), "train")
    with pytest.raises(InvalidConfigError, match="done with --loss forward_kl, not tvd"):
        run(dataclasses.replace(made, loss="tvd"), "train")
    with pytest.raises(InvalidConfigError, match=r"done with --rate 0\.001, not 0\.01"):
        run(dataclasses.replace(made, rate=0.01), "train")
    with pytest.raises(InvalidConfigError, match="train was done with --from None, not"):
        run(dataclasses.replace(made, start=made.work), "train")
    limit = longest_prompt(made) - 1
    with pytest.raises(InvalidConfigError, match=f"--max-prompt-tokens {limit}: .* another limit"):
        run(dataclasses.replace(made, max_prompt_tokens=limit), "answers")
    with pytest.raises(InvalidConfigError, match="a student with layers .* was trained there"):
        run(dataclasses.replace(made, layers=(0, 1, 5)), "student")
    run(made, "prompts")


def test_what_is_there_already_loads_no_target(
    made: DistillSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "make_generator", None)

    for step in STEPS[:2]:
        run(made, step)


def test_a_student_with_other_tokens_is_refused_by_its_switch(
    made: DistillSettings, target: Path, tmp_path: Path
) -> None:
    student = tmp_path / "student"
    shutil.copytree(target, student)
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(["<more>"])
    tokenizer.save_pretrained(student)
    settings = dataclasses.replace(made, work=tmp_path / "work", student=str(student))

    with pytest.raises(InvalidConfigError, match=r"--student .*'<more>', is only the draft's") as e:
        run(settings, "student")
    assert "draft.method" not in str(e.value)


def untrained(made: DistillSettings, folder: Path) -> DistillSettings:
    """The same distillation in a folder of its own, before the training."""
    shutil.copytree(made.work, folder / "work", ignore=shutil.ignore_patterns("training"))
    return dataclasses.replace(made, out=folder / "draft", work=folder / "work")


def read_report(settings: DistillSettings) -> Any:
    return json.loads(WorkFolder(settings.work).report.read_text())


def test_the_report_names_the_loss_that_was_trained_by(
    made: DistillSettings, tmp_path: Path
) -> None:
    settings = untrained(made, tmp_path)
    run(dataclasses.replace(settings, loss="tvd"), "train")

    run(settings, "report")

    assert read_report(settings)["loss"] == "tvd"


@pytest.mark.parametrize("has_notes", [True, False])
def test_the_report_counts_up_to_the_best_layers(
    made: DistillSettings, tmp_path: Path, has_notes: bool
) -> None:
    settings = untrained(made, tmp_path)
    work = WorkFolder(settings.work)
    run(settings, "train")
    best = json.loads(work.curve.read_text().splitlines()[-1])
    later = {**best, "tokens": 54321, "seconds": 6000.0, "loss": best["loss"] + 1}
    with work.curve.open("a") as file:
        file.write(json.dumps(later) + "\n")
    if not has_notes:  # as earlier versions left the layers
        save_file(load_file(work.best), tmp_path / "layers")
        (tmp_path / "layers").replace(work.best)

    run(settings, "report")

    report = read_report(settings)
    assert report["trained_tokens"] == best["tokens"]
    assert report["minutes"] == round(best["seconds"] / 60, 1)


def test_a_training_without_an_end_is_nothing_to_export(
    made: DistillSettings, tmp_path: Path
) -> None:
    settings = untrained(made, tmp_path)
    run(settings, "train")
    WorkFolder(settings.work).best.unlink()

    with pytest.raises(InvalidConfigError, match="nothing was trained"):
        run(settings, "export")


def test_layers_that_were_named_once_need_not_be_named_again(
    made: DistillSettings, tmp_path: Path
) -> None:
    settings = dataclasses.replace(made, work=tmp_path / "work", layers=(0, 1, 5), num_layers=8)

    run(settings, "student")
    run(dataclasses.replace(settings, layers=None), "student")

    assert json.loads((settings.work / "student.json").read_text())["layers"] == [0, 1, 5]


def test_answers_of_other_machines_keep_their_limit(made: DistillSettings, tmp_path: Path) -> None:
    """Where they are collected nothing was told yet."""
    limit = longest_prompt(made) - 1
    shared = dataclasses.replace(made, work=tmp_path / "shared", max_prompt_tokens=limit)
    run(shared, "prompts")
    run(shared, "answers")
    collected = dataclasses.replace(shared, work=tmp_path / "collected")
    shutil.copytree(shared.work, collected.work, ignore=shutil.ignore_patterns("told.json"))

    run(collected, "answers")
    with pytest.raises(InvalidConfigError, match="--max-prompt-tokens 448: .* another limit"):
        run(dataclasses.replace(collected, max_prompt_tokens=448), "answers")


@pytest.mark.parametrize("file", ["checkpoint.pt", "best.safetensors"])
def test_the_layers_of_a_training_stay(made: DistillSettings, tmp_path: Path, file: str) -> None:
    settings = dataclasses.replace(made, work=tmp_path / "work", layers=(0, 1, 5))
    run(settings, "student")
    (WorkFolder(settings.work).training / file).touch()

    with pytest.raises(InvalidConfigError, match="a student with layers .* was trained there"):
        run(dataclasses.replace(settings, layers=(0, 4, 5)), "student")


def test_other_layers_leave_nothing_of_a_training_without_a_checkpoint(
    made: DistillSettings, tmp_path: Path
) -> None:
    settings = dataclasses.replace(made, work=tmp_path / "work", layers=(0, 1, 5))
    run(settings, "student")
    prefix = WorkFolder(settings.work).training / "train-00000.npz.npy"
    prefix.touch()

    run(settings, "student")
    assert prefix.is_file()
    run(dataclasses.replace(settings, layers=(0, 4, 5)), "student")
    assert not prefix.is_file()


def test_what_did_not_fit_can_be_put_right(made: DistillSettings, tmp_path: Path) -> None:
    settings = dataclasses.replace(
        made, work=tmp_path / "work", start=made.work, num_shared=2, tokens=1
    )
    for step in ("prompts", "answers", "student"):
        run(settings, step)
    with pytest.raises(InvalidConfigError, match="no larger --num-shared"):
        run(settings, "train")

    for _ in range(2):  # the second resumes
        run(dataclasses.replace(settings, num_shared=1), "train")


def test_texts_longer_than_the_targets_context_are_refused(
    made: DistillSettings, tmp_path: Path
) -> None:
    most = 1024 - made.max_answer_tokens
    settings = dataclasses.replace(made, work=tmp_path / "work", max_prompt_tokens=most + 1)

    with pytest.raises(InvalidConfigError, match="--max-prompt-tokens 1001 .* has 1024 positions"):
        run(settings, "prompts")
    run(dataclasses.replace(settings, max_prompt_tokens=most), "prompts")


def test_prompts_that_are_all_too_long_are_named(made: DistillSettings, tmp_path: Path) -> None:
    work = tmp_path / "work"
    settings = dataclasses.replace(made, work=work, max_prompt_tokens=1)
    run(settings, "prompts")
    with pytest.raises(InvalidConfigError, match="--max-prompt-tokens 1: no prompt to train on"):
        run(settings, "answers")


def test_more_layers_than_the_target_has_are_refused(made: DistillSettings, tmp_path: Path) -> None:
    (made.work / "student.json").rename(tmp_path / "student.json")
    try:
        with pytest.raises(InvalidConfigError, match="--num-layers 99: the target has"):
            run(dataclasses.replace(made, layers=None, num_layers=99), "student")
    finally:
        (tmp_path / "student.json").rename(made.work / "student.json")


@pytest.mark.parametrize("num_shared", [1, 0])  # as the other, and with one that it shared
def test_a_training_goes_on_with_what_another_has_learnt(
    made: DistillSettings, tmp_path: Path, num_shared: int
) -> None:
    settings = dataclasses.replace(
        made, out=tmp_path / "draft", work=tmp_path / "work", start=made.work, tokens=1, rate=1e-9,
        num_shared=num_shared,
    )  # fmt: skip

    run(settings)

    begun, learnt = (
        AutoModelForCausalLM.from_pretrained(folder).state_dict()
        for folder in (settings.out, made.out)
    )
    assert all(torch.allclose(begun[name], weight, atol=1e-6) for name, weight in learnt.items())


def test_a_training_goes_on_with_a_drafts_layers(made: DistillSettings, tmp_path: Path) -> None:
    layers = tmp_path / "layers"
    run(dataclasses.replace(made, out=layers, layers_only=True), "export")
    settings = dataclasses.replace(
        made, out=tmp_path / "draft", work=tmp_path / "work", start=layers, tokens=1, rate=1e-9
    )

    run(settings)

    begun, learnt = (
        AutoModelForCausalLM.from_pretrained(folder).state_dict()
        for folder in (settings.out, made.out)
    )
    rounding = 0.02  # of int8
    assert all(
        torch.allclose(begun[name], weight, atol=rounding) for name, weight in learnt.items()
    )


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"layers": (0, 5)}, r"--layers \[0, 5\]: --from .* has \[0, "),
        ({"num_shared": 2}, "2 layers were trained there.* 1 to be trained here"),
    ],
)
def test_what_another_has_learnt_must_fit(
    made: DistillSettings, tmp_path: Path, changes: dict[str, Any], complaint: str
) -> None:
    work = tmp_path / "work"
    settings = dataclasses.replace(made, work=work, start=made.work, **changes)
    for step in ("prompts", "answers"):
        run(settings, step)
    with pytest.raises(InvalidConfigError, match=complaint):
        _choose_and_train(settings)


def _choose_and_train(settings: DistillSettings) -> None:
    run(settings, "student")
    run(settings, "train")


class _Mortal:
    """A generator that is killed at its n-th call."""

    def __init__(self, generator: Generator, calls: int) -> None:
        self._generator = generator
        self._calls = calls
        self.num_at_once = generator.num_at_once

    def generate(self, requests: Sequence[SampleRequest], top_k: int) -> list[Completion]:
        self._calls -= 1
        if self._calls < 0:
            raise RuntimeError("killed")
        return self._generator.generate(requests, top_k)


@pytest.mark.parametrize("calls", [0, 2, 5, 7])
def test_a_kill_during_generation_changes_no_data(
    made: DistillSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    settings = dataclasses.replace(made, out=tmp_path / "draft", work=tmp_path / "work")
    make: Callable[..., Generator] = engines.make_generator

    def make_mortal(*args: Any) -> Generator:
        return _Mortal(make(*args), calls)

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "make_generator", make_mortal)
        with pytest.raises(RuntimeError, match="killed"):
            run(settings)
    for step in STEPS[:2]:
        run(settings, step)

    assert (settings.work / "prompts.jsonl").read_bytes() == (
        made.work / "prompts.jsonl"
    ).read_bytes()
    for split in ("train", "held_out"):
        found, wanted = (find_shards(WorkFolder(s.work), split) for s in (settings, made))
        assert [path.read_bytes() for path in found] == [path.read_bytes() for path in wanted]
    assert not list(settings.work.rglob("*.partial"))


@pytest.mark.e2e  # two processes that import transformers: ten seconds each
def test_a_process_that_is_killed_is_resumed(
    target: Path, made: DistillSettings, tmp_path: Path
) -> None:
    """SIGKILL as soon as there is a checkpoint, then wherever it is; the draft is as without."""
    for code, said in ((_RUN_TO_BE_KILLED, "checkpoint\n"), (_RUN_WITHOUT_PAUSE, "begins\n")):
        words = [sys.executable, "-c", code, str(target), str(tmp_path)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == said
            if code == _RUN_WITHOUT_PAUSE:
                time.sleep(_TINY_RUN_S / 2)
            process.kill()
        assert process.returncode in (-signal.SIGKILL, 0)  # 0: it was quicker

    run(make_settings(target, tmp_path))

    draft, wanted = (
        AutoModelForCausalLM.from_pretrained(folder).state_dict()
        for folder in (tmp_path / "draft", made.out)
    )
    assert all(torch.equal(draft[name], weight) for name, weight in wanted.items())


_TINY_RUN_S = 1.0  # less than the rest takes on most machines, once all is imported

_SAVE_ALWAYS = """
from specray.distill import trainer

trainer.TrainPlan.__init__.__defaults__ = tuple(
    0.0 if value == 240.0 else value for value in trainer.TrainPlan.__init__.__defaults__
)
"""

_RUN_WITHOUT_PAUSE = f"""
import sys
from pathlib import Path
from tests.distill.test_pipeline import make_settings, run
{_SAVE_ALWAYS}
print("begins", flush=True)
run(make_settings(Path(sys.argv[1]), Path(sys.argv[2])))
"""

_RUN_TO_BE_KILLED = f"""
import sys, time
from pathlib import Path
from tests.distill.test_pipeline import make_settings, run
{_SAVE_ALWAYS}
save = trainer.Trainer._save

def save_and_wait(self):
    save(self)
    if self.progress.step == 3:
        print("checkpoint", flush=True)
        time.sleep(60)

trainer.Trainer._save = save_and_wait
run(make_settings(Path(sys.argv[1]), Path(sys.argv[2])))
"""


@pytest.mark.parametrize(
    ("step", "complaint"),
    [
        ("answers", "no prompts.*--only prompts"),
        ("student", "no answers.*--only answers"),
        ("train", "no answers.*--only answers"),
        ("report", "nothing was trained.*--only train|no student"),
        ("export", "nothing was trained.*--only train"),
    ],
)
def test_a_step_out_of_turn_says_which_comes_before(
    target: Path, tmp_path: Path, step: str, complaint: str
) -> None:
    with pytest.raises(InvalidConfigError, match=complaint):
        run(make_settings(target, tmp_path), step)


def test_a_work_folder_belongs_to_one_distillation(made: DistillSettings) -> None:
    with pytest.raises(InvalidConfigError, match="begun with seed 0, not 1"):
        run(dataclasses.replace(made, seed=1), "prompts")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"minutes": 5.0}, "one of --minutes and --tokens"),
        ({"tokens": None}, "one of --minutes and --tokens"),
        ({"tokens": 0}, "--tokens 0"),
        ({"num_layers": 0}, "--num-layers 0"),
        ({"loss": "l2"}, "--loss l2"),
        ({"compiling": "of"}, "--compile of"),
        ({"part": (2, 2)}, "--part 2/2"),
        ({"start": Path("work"), "student": "tiny"}, "--from .* leave --student out"),
        ({"start": Path("nowhere")}, "--from nowhere: there is no such folder"),
    ],
)
def test_settings_that_make_no_sense_are_named(
    tmp_path: Path, changes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(InvalidConfigError, match=complaint):
        make_settings(tmp_path, tmp_path, **changes)


def test_the_dial_decides_how_many_prompts(tmp_path: Path) -> None:
    ten_minutes = make_settings(tmp_path, tmp_path, tokens=None, minutes=10.0, num_prompts=None)

    assert ten_minutes.planned_prompts == 120
    assert ten_minutes.training_minutes == pytest.approx(6)
    assert dataclasses.replace(ten_minutes, device="cuda").planned_prompts == 6000


def test_a_short_training_has_a_curve_too(tmp_path: Path) -> None:
    ten_minutes = make_settings(tmp_path, tmp_path, tokens=None, minutes=10.0)

    assert ten_minutes.eval_every_s == pytest.approx(36)
    assert dataclasses.replace(ten_minutes, minutes=600.0).eval_every_s == 300
    assert dataclasses.replace(ten_minutes, minutes=None, tokens=9).eval_every_s == 300


def test_a_training_is_told_how_often_to_measure(made: DistillSettings) -> None:
    short = dataclasses.replace(made, tokens=None, minutes=10.0)
    trainer = training.make_trainer(short, WorkFolder(made.work))

    assert trainer._plan.eval_every_s == pytest.approx(36)


def test_a_training_is_told_whether_to_compile(made: DistillSettings) -> None:
    """Also one that was begun with another choice."""
    settings = dataclasses.replace(made, compiling="on", tokens=1)

    run(settings, "train")

    assert training.make_trainer(settings, WorkFolder(made.work))._plan.compiling == "on"


def test_a_device_says_how_many_texts_run_together(
    made: DistillSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(engines._AT_ONCE, "cpu", 7)
    template = engines.load_template(made.target)

    assert engines.make_generator(made, template).num_at_once == 7
