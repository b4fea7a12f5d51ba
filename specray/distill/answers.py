"""Step (b): the target's answers with its most likely tokens, stored once."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import NamedTuple

import numpy as np

from specray.distill.generation import Generator, SampleRequest
from specray.distill.prompts import HELD_OUT, TRAIN, Prompt
from specray.distill.shards import Answer, find_shards, save_shard
from specray.distill.template import ChatTemplate
from specray.distill.work import WorkFolder
from specray.errors import InvalidConfigError

logger = logging.getLogger(__name__)


class AnswerPlan(NamedTuple):
    """How the target answers."""

    top_k: int = 20
    max_tokens: int = 256
    max_prompt_tokens: int = 448  # longer prompts are left out
    shard: int = 128  # answers per file; a kill costs those that run together


def answer_prompts(
    prompts: Sequence[Prompt],
    plan: AnswerPlan,
    work: WorkFolder,
    template: ChatTemplate,
    make_generator: Callable[[], Generator],
    part: tuple[int, int] = (0, 1),
) -> None:
    """Answers each prompt twice, greedy and sampled, if its file is not there yet.

    Args:
        prompts: of both splits.
        plan: how to answer.
        work: takes the files.
        template: the target's.
        make_generator: loads the target, or has it already; not called if nothing is left.
        part: (i, n) does only every n-th shard from the i-th, so that n machines may share.

    Raises:
        InvalidConfigError: all prompts of a split are too long, or a file that is there answers
            others than its name stands for.
    """
    jobs = list(_jobs(prompts, plan, template))
    _check_files(work, dict(jobs), plan)
    num_left_out = 2 * len(prompts) - sum(len(entries) for _, entries in jobs)
    if num_left_out:
        logger.warning(
            "answers: %d of %d prompts are left out: longer than --max-prompt-tokens %d",
            num_left_out // 2,
            len(prompts),
            plan.max_prompt_tokens,
        )
    for split, purpose in ((TRAIN, "train on"), (HELD_OUT, "measure by")):
        has_prompts = any(prompt.split == split for prompt in prompts)
        if has_prompts and not any(name.startswith(split) for name, _ in jobs):
            raise InvalidConfigError(
                f"--max-prompt-tokens {plan.max_prompt_tokens}: no prompt to {purpose} is as short"
            )
    left = [
        (work.answers / name, entries)
        for index, (name, entries) in enumerate(jobs)
        if index % part[1] == part[0] and not (work.answers / name).is_file()
    ]
    if not left:
        return
    generator = make_generator()
    done_tokens, start = 0, time.monotonic()
    files_at_once = max(1, generator.num_at_once // plan.shard)
    for first in range(0, len(left), files_at_once):
        part_left = left[first : first + files_at_once]
        requests = [request for _, entries in part_left for _, _, request in entries]
        completions = iter(generator.generate(requests, plan.top_k))
        for path, entries in part_left:
            answers = [
                Answer(prompt, is_greedy, np.array(request.prompt, np.int32), *next(completions))
                for prompt, is_greedy, request in entries
            ]
            save_shard(path, answers)
            done_tokens += sum(len(answer.token_ids) for answer in answers)
        number = first + len(part_left)
        seconds = time.monotonic() - start
        logger.info(
            "answers: file %d of %d, %.0f tokens/s, %.0f min left",
            *(number, len(left), done_tokens / seconds),
            seconds / 60 * (len(left) - number) / number,
        )


_Entry = tuple[int, bool, SampleRequest]


def _jobs(
    prompts: Sequence[Prompt], plan: AnswerPlan, template: ChatTemplate
) -> Iterator[tuple[str, list[_Entry]]]:
    for split in (HELD_OUT, TRAIN):
        chosen = [prompt for prompt in prompts if prompt.split == split]
        entries = [
            (i, is_greedy, request)
            for i, prompt in enumerate(chosen)
            for is_greedy in (True, False)
            for request in [_request(template, prompt, is_greedy, plan)]
            if len(request.prompt) <= plan.max_prompt_tokens
        ]
        # Like with like, as a batch is as wide as its longest prompt; the files in any order, so
        # that the first few already hold all lengths.
        entries.sort(key=lambda entry: len(entry[2].prompt))
        shards = [entries[i : i + plan.shard] for i in range(0, len(entries), plan.shard)]
        Random(len(shards)).shuffle(shards)
        for number, shard in enumerate(shards):
            yield f"{split}-{number:05d}.npz", shard


def _check_files(work: WorkFolder, jobs: Mapping[str, list[_Entry]], plan: AnswerPlan) -> None:
    """Refuses files of other prompts: which are in which depends on those that are left out."""
    for path in (*find_shards(work, HELD_OUT), *find_shards(work, TRAIN)):
        with np.load(path) as arrays:
            answered = arrays["prompt"].tolist()
        if answered != [prompt for prompt, _, _ in jobs.get(path.name, [])]:
            raise InvalidConfigError(
                f"--max-prompt-tokens {plan.max_prompt_tokens}: {path} was made with another limit "
                "or from other prompts, or by an earlier version; give the same limit, or name "
                "another folder"
            )


def _request(
    template: ChatTemplate, prompt: Prompt, is_greedy: bool, plan: AnswerPlan
) -> SampleRequest:
    return SampleRequest(
        template.encode(prompt.messages),
        Random(prompt.name).getrandbits(31),
        plan.max_tokens,
        temperature=0.0 if is_greedy else 1.0,
        may_stop_in_loop=prompt.split == TRAIN,
    )
