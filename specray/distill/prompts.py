"""Step (a): prompts, written by the target itself, made from texts, or the user's own."""

import logging
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from specray.distill.generation import Generator, SampleRequest
from specray.distill.prompt_files import read_prompts
from specray.distill.tasks import CODE_TASKS, OPENINGS, PROSE_TASKS, SHARES
from specray.distill.template import ChatTemplate
from specray.distill.texts import Passage, find_passages
from specray.distill.work import WorkFolder, read_json_lines, write_json_lines
from specray.errors import InvalidConfigError

logger = logging.getLogger(__name__)

TRAIN, HELD_OUT = "train", "held_out"
_SHARD = 256
_TOP_P = 0.97  # Magpie, arXiv 2406.08464
_MIN_CHARS = 12
_MIN_DISTINCT = 0.4  # share of a prompt's words that differ
_HELD_OUT_SEED = 1 << 30  # far from any seed of the training prompts
_USERS_PER_HELD_OUT = 8  # of the user's own prompts at most one in so many is not trained on
_HELD_OUT_SURPLUS = 2.5  # prompts asked for per prompt wanted, as some are dropped


@dataclass(frozen=True, slots=True)
class Prompt:
    """A conversation whose next turn is the assistant's."""

    name: str
    kind: str
    split: str
    messages: list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class PromptPlan:
    """How many prompts, and where from."""

    num_train: int
    num_held_out: int  # per kind
    max_written_tokens: int = 160  # a longer prompt of the target's is dropped, as without an end
    seed: int = 0
    files: tuple[Path, ...] = ()  # the user's own
    only_files: bool = False  # train on no others; held-out ones of the other kinds are still made


def make_prompts(
    plan: PromptPlan,
    work: WorkFolder,
    template: ChatTemplate,
    generator: Generator,
    texts: Callable[[], Sequence[Passage]] = find_passages,
) -> list[Prompt]:
    """Makes all prompts, or reads those of an earlier call.

    Raises:
        InvalidConfigError: a file of the user's is faulty; the message names the line. Or nothing
            usable was made to train on or to measure by.
    """
    if not work.prompts.is_file():
        users = _users(plan)
        writer = _Writer(plan, work, template, generator)
        passages = texts()
        train = [prompt for prompt in users if prompt.split == TRAIN]
        train += [] if plan.only_files else _training(plan, writer, passages)
        held_out = _held_out(plan, writer, passages)
        held_out += [prompt for prompt in users if prompt.split == HELD_OUT]
        # Mixed, so that the first answers are already of all kinds.
        Random(plan.seed).shuffle(train)
        prompts = _distinct([*held_out, *train])
        _check_splits(prompts, plan)
        write_json_lines(work.prompts, [asdict(prompt) for prompt in prompts])
    return load_prompts(work)


def load_prompts(work: WorkFolder) -> list[Prompt]:
    """The prompts that the step has made.

    Raises:
        InvalidConfigError: it was not run yet.
    """
    if not work.prompts.is_file():
        raise InvalidConfigError(
            f"--work {work.path}: there are no prompts; run `specray distill` with --only prompts"
        )
    return [Prompt(**value) for _, value in read_json_lines(work.prompts)]


def _check_splits(prompts: Sequence[Prompt], plan: PromptPlan) -> None:
    """Refuses what later steps could make nothing of."""
    asked = {
        TRAIN: f"--num-prompts {plan.num_train}",
        HELD_OUT: f"--num-held-out {plan.num_held_out}",
    }
    for split, option in asked.items():
        if not any(prompt.split == split for prompt in prompts):
            raise InvalidConfigError(f"{option}: not one usable prompt was made; ask for more")


def _training(plan: PromptPlan, writer: "_Writer", passages: Sequence[Passage]) -> list[Prompt]:
    prompts: list[Prompt] = []
    for (kind, is_written), share in SHARES.items():
        count = round(share * plan.num_train)
        if is_written:
            prompts += writer.write(kind, TRAIN, count)
        else:
            prompts += _from_texts(kind, TRAIN, count, passages, plan.seed)
    return prompts


def _held_out(plan: PromptPlan, writer: "_Writer", passages: Sequence[Passage]) -> list[Prompt]:
    prompts: list[Prompt] = []
    for kind in OPENINGS:
        half = plan.num_held_out // 2 if kind != "chat" else 0
        wanted = plan.num_held_out - half
        prompts += writer.write(kind, HELD_OUT, round(wanted * _HELD_OUT_SURPLUS))[:wanted]
        prompts += _from_texts(kind, HELD_OUT, half, passages, plan.seed)
    return prompts


class _Shard(NamedTuple):
    """A file of prompts that the target writes."""

    path: Path
    indices: range  # of the prompts, among all of their kind


class _Writer:
    """Lets the target write prompts, a file per shard; a kill costs those that run together."""

    def __init__(
        self, plan: PromptPlan, work: WorkFolder, template: ChatTemplate, generator: Generator
    ) -> None:
        self._plan = plan
        self._work = work
        self._template = template
        self._generator = generator

    def write(self, kind: str, split: str, count: int) -> list[Prompt]:
        """Up to `count` prompts: some that were asked for are not usable."""
        shards = [
            _Shard(self._work.synthetic / f"{split}-{kind}-{i:05d}-of-{len(part)}.jsonl", part)
            for i, first in enumerate(range(0, count, _SHARD))
            for part in [range(first, min(first + _SHARD, count))]
        ]
        left = [shard for shard in shards if not shard.path.is_file()]
        at_once = max(1, self._generator.num_at_once // _SHARD)
        for first in range(0, len(left), at_once):
            self._fill(left[first : first + at_once], kind, split)
            num_left = sum(len(shard.indices) for shard in left[first + at_once :])
            logger.info("prompts: %d of %d of kind %s, %s", count - num_left, count, kind, split)
        texts = [text for shard in shards for _, text in read_json_lines(shard.path)]
        return [
            Prompt(f"{split}-{kind}-{i}", kind, split, [{"role": "user", "content": text}])
            for i, text in enumerate(texts)
            if is_usable(text)
        ]

    def _fill(self, shards: Sequence[_Shard], kind: str, split: str) -> None:
        texts = self._generate(kind, split, [i for shard in shards for i in shard.indices])
        for shard in shards:
            write_json_lines(shard.path, islice(texts, len(shard.indices)))

    def _generate(self, kind: str, split: str, indices: Sequence[int]) -> Iterator[str]:
        first = self._plan.seed * 1_000_003 + (_HELD_OUT_SEED if split == HELD_OUT else 0)
        kind_seed = list(OPENINGS).index(kind) << 24
        openings = [OPENINGS[kind][i % _SHARD % len(OPENINGS[kind])] for i in indices]
        requests = [
            SampleRequest(
                self._start(opening),
                first + kind_seed + i,
                self._plan.max_written_tokens,
                top_p=_TOP_P,
            )
            for i, opening in zip(indices, openings, strict=True)
        ]
        completions = self._generator.generate(requests, top_k=0)
        for opening, completion in zip(openings, completions, strict=True):
            tokens = completion.token_ids.tolist()
            words = self._template.user_words(tokens)
            yield "" if words is None else opening + words

    def _start(self, opening: str) -> tuple[int, ...]:
        encode: Any = self._template.tokenizer.encode
        return self._template.user_start + tuple(encode(opening, add_special_tokens=False))


def is_usable(text: str) -> bool:
    """Whether a prompt is one: long enough, and not the same words over and over."""
    words = text.lower().split()
    return len(text) >= _MIN_CHARS and len(set(words)) >= _MIN_DISTINCT * len(words)


def _from_texts(
    kind: str, split: str, count: int, passages: Sequence[Passage], seed: int
) -> list[Prompt]:
    is_code = kind == "code"
    tasks = CODE_TASKS if is_code else PROSE_TASKS
    usable = [p for p in passages if (p.is_code, p.held_out) == (is_code, split == HELD_OUT)]
    chosen = Random(f"{seed}-{kind}-{split}").sample(usable, min(count, len(usable)))
    return [
        Prompt(
            f"{split}-{kind}-text-{i}",
            kind,
            split,
            [{"role": "user", "content": tasks[i % len(tasks)].format(passage.text)}],
        )
        for i, passage in enumerate(chosen)
    ]


def _users(plan: PromptPlan) -> list[Prompt]:
    """The user's own prompts, some of them held out, so that the draft is measured by them too.

    Which ones depends on their words only: a training of the same prompts with another seed that
    goes on from this one's layers is not measured by what they have learnt.
    """
    prompts = _distinct(prompt for file in plan.files for prompt in _from_file(file))
    count = min(plan.num_held_out, len(prompts) // _USERS_PER_HELD_OUT)
    order = sorted(range(len(prompts)), key=lambda i: zlib.crc32(_words(prompts[i]).encode()))
    for index in order[:count]:
        prompts[index] = replace(prompts[index], split=HELD_OUT)
    if prompts:
        logger.info("prompts: %d of your own %d are kept to measure by", count, len(prompts))
    return prompts


def _from_file(path: Path) -> list[Prompt]:
    prompts = [
        Prompt(f"{path.name}-{i}", "user", TRAIN, messages)
        for i, messages in enumerate(read_prompts(path))
    ]
    if not prompts:
        raise InvalidConfigError(f"--prompts {path}: there is no prompt in it")
    return prompts


def _distinct(prompts: Iterable[Prompt]) -> list[Prompt]:
    """Without those whose words came before: held-out ones come first, so they stay apart."""
    by_words: dict[str, Prompt] = {}
    for prompt in prompts:
        by_words.setdefault(_words(prompt), prompt)
    return list(by_words.values())


def _words(prompt: Prompt) -> str:
    return " ".join(" ".join(m["content"] for m in prompt.messages).lower().split())
