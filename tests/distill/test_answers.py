from pathlib import Path

import numpy as np
import pytest

from specray.distill.answers import AnswerPlan, answer_prompts
from specray.distill.generation import Completion, SampleRequest
from specray.distill.prompts import Prompt
from specray.distill.shards import Answer, find_shards, load_shard
from specray.distill.template import read_template
from specray.distill.work import WorkFolder
from specray.errors import InvalidConfigError
from tests.distill.conftest import make_tokenizer


class Echo:
    """Answers with the prompt's last tokens, and remembers what it was asked."""

    def __init__(self, offset: int = 0, num_at_once: int = 4) -> None:
        self.requests: list[SampleRequest] = []
        self.num_calls = 0
        self.num_at_once = num_at_once
        self._offset = offset

    def generate(self, requests: list[SampleRequest], top_k: int) -> list[Completion]:
        self.requests += requests
        self.num_calls += 1
        made = []
        for request in requests:
            tokens = np.array(request.prompt[-request.seed % 3 - 1 :], np.int32) + self._offset
            top = np.arange(len(tokens) * top_k, dtype=np.int32).reshape(-1, top_k) + self._offset
            made.append(Completion(tokens, top, -0.25 * (top - self._offset).astype(np.float16)))
        return made


def make_prompts(count: int) -> list[Prompt]:
    return [
        Prompt(f"p{i}", "chat", split, [{"role": "user", "content": f"number {i}"}])
        for i in range(count)
        for split in ("train", "held_out")
    ]


def answer(work: WorkFolder, echo: Echo, part: tuple[int, int] = (0, 1), **plan: int) -> None:
    template = read_template(make_tokenizer())
    plan = {"top_k": 2, "shard": 4, **plan}
    answer_prompts(make_prompts(5), AnswerPlan(**plan), work, template, lambda: echo, part)


def load(work: WorkFolder, split: str) -> list[Answer]:
    return [answer for path in find_shards(work, split) for answer in load_shard(path)]


@pytest.mark.parametrize("offset", [0, 70_000])  # ids in two bytes, and in four
def test_answers_come_back_as_they_were(tmp_path: Path, offset: int) -> None:
    echo = Echo(offset)
    work = WorkFolder(tmp_path)

    answer(work, echo)

    answers = load(work, "held_out") + load(work, "train")
    assert len(answers) == len(echo.requests) == 20
    again = Echo(offset).generate(echo.requests, 2)
    for found, request, wanted in zip(answers, echo.requests, again, strict=True):
        assert found.prompt_ids.tolist() == list(request.prompt)
        assert found.is_greedy == (request.temperature == 0)
        assert found.token_ids.tolist() == wanted.token_ids.tolist()
        assert np.array_equal(found.top_ids, wanted.top_ids)
        assert np.array_equal(found.top_logprobs, wanted.top_logprobs)


def test_a_generator_gets_as_many_files_as_it_answers_at_once(tmp_path: Path) -> None:
    folders = [WorkFolder(tmp_path / name) for name in ("one", "some", "all")]
    echoes = [Echo(num_at_once=count) for count in (3, 8, 100)]
    for work, echo in zip(folders, echoes, strict=True):
        answer(work, echo)

    assert [echo.num_calls for echo in echoes] == [6, 3, 1]  # of 6 files
    files = [[path.read_bytes() for path in sorted(work.answers.iterdir())] for work in folders]
    assert files[0] == files[1] == files[2]


def test_prompts_of_one_length_are_answered_together(tmp_path: Path) -> None:
    prompts = [
        Prompt(f"p{i}", "chat", "train", [{"role": "user", "content": "x" * (37 * i % 48)}])
        for i in range(48)
    ]
    work = WorkFolder(tmp_path)

    answer_prompts(prompts, AnswerPlan(2, shard=8), work, read_template(make_tokenizer()), Echo)

    shards = [[len(a.prompt_ids) for a in load_shard(p)] for p in find_shards(work, "train")]
    assert all(max(lengths) - min(lengths) == 3 for lengths in shards)
    assert [min(lengths) for lengths in shards] != sorted(min(lengths) for lengths in shards)


def test_each_prompt_is_answered_both_ways(tmp_path: Path) -> None:
    work = WorkFolder(tmp_path)

    answer(work, Echo())

    modes = {(a.prompt, a.is_greedy) for a in load(work, "train")}
    assert modes == {(i, mode) for i in range(5) for mode in (True, False)}


def test_only_answers_to_train_on_may_be_cut(tmp_path: Path) -> None:
    echo = Echo()
    answer(WorkFolder(tmp_path), echo)

    assert [request.may_stop_in_loop for request in echo.requests] == [False] * 10 + [True] * 10


def test_machines_that_share_the_work_leave_the_same_files(tmp_path: Path) -> None:
    together, alone = WorkFolder(tmp_path / "two"), WorkFolder(tmp_path / "one")
    parts = [Echo(), Echo()]

    answer(alone, Echo())
    for index, echo in enumerate(parts):
        answer(together, echo, (index, 2))

    assert all(echo.requests for echo in parts)
    assert sum(len(echo.requests) for echo in parts) == 20
    for one, two in zip(
        sorted(alone.answers.iterdir()), sorted(together.answers.iterdir()), strict=True
    ):
        assert one.name == two.name
        assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize("limits", [(40, 60), (60, 40)])
def test_files_that_another_limit_divided_are_refused(
    tmp_path: Path, limits: tuple[int, int]
) -> None:
    """Machines that share the work must leave out the same prompts."""
    prompts = [
        Prompt(f"p{i}", "chat", "train", [{"role": "user", "content": "x" * i}]) for i in range(48)
    ]
    work, template, echo = WorkFolder(tmp_path), read_template(make_tokenizer()), Echo()
    plans = [AnswerPlan(2, max_prompt_tokens=limit, shard=8) for limit in limits]
    answer_prompts(prompts, plans[0], work, template, Echo, (0, 2))

    with pytest.raises(InvalidConfigError, match=f"--max-prompt-tokens {limits[1]}: .* another"):
        answer_prompts(prompts, plans[1], work, template, lambda: echo, (1, 2))
    assert not echo.requests
    answer_prompts(prompts, plans[0], work, template, lambda: echo, (1, 2))

    assert echo.requests


def test_prompts_that_are_too_long_are_left_out(tmp_path: Path) -> None:
    echo = Echo()

    with pytest.raises(InvalidConfigError, match="no prompt to train on is as short"):
        answer(WorkFolder(tmp_path), echo, max_prompt_tokens=5)

    assert not echo.requests


def test_held_out_prompts_may_not_all_be_too_long(tmp_path: Path) -> None:
    prompts = [
        Prompt(split, "chat", split, [{"role": "user", "content": "x" * length}])
        for split, length in (("train", 1), ("held_out", 50))
    ]
    plan = AnswerPlan(2, max_prompt_tokens=40)
    template = read_template(make_tokenizer())

    with pytest.raises(InvalidConfigError, match="no prompt to measure by is as short"):
        answer_prompts(prompts, plan, WorkFolder(tmp_path), template, Echo)


def test_how_many_prompts_are_too_long_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    echo = Echo()
    prompts = [
        Prompt(f"p{i}", "chat", "train", [{"role": "user", "content": "x" * (1 + 20 * i)}])
        for i in range(5)
    ]
    plan = AnswerPlan(2, max_prompt_tokens=60)

    answer_prompts(
        prompts, plan, WorkFolder(tmp_path), read_template(make_tokenizer()), lambda: echo
    )

    assert 0 < len(echo.requests) < 10
    num_left_out = 5 - len(echo.requests) // 2
    assert f"{num_left_out} of 5 prompts are left out" in caplog.text


def test_progress_counts_what_is_left_of_ones_own_part(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    work = WorkFolder(tmp_path)
    answer(work, Echo(), part=(0, 2))
    first = [line for line in caplog.messages if line.startswith("answers: file")]
    caplog.clear()
    answer(work, Echo())
    rest = [line for line in caplog.messages if line.startswith("answers: file")]

    assert [line.split(",")[0] for line in first] == [f"answers: file {n} of 3" for n in (1, 2, 3)]
    assert [line.split(",")[0] for line in rest] == [f"answers: file {n} of 3" for n in (1, 2, 3)]
    assert rest[-1].endswith(", 0 min left")
