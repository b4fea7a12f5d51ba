"""The steps in their order; each finds what the one before left in the work folder."""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from specray.distill.answers import AnswerPlan, answer_prompts
from specray.distill.engines import load_template, make_generator
from specray.distill.export import copy_beside, save_draft, save_layers
from specray.distill.generation import Generator
from specray.distill.ngrams import write_ngrams
from specray.distill.prompts import PromptPlan, load_prompts, make_prompts
from specray.distill.provenance import describe
from specray.distill.reporting import write_report
from specray.distill.settings import STEPS, DistillSettings
from specray.distill.student_choice import choose_student, load_trained
from specray.distill.texts import Passage, find_passages
from specray.distill.training import make_trainer
from specray.distill.work import WorkFolder, write_json, write_text
from specray.errors import InvalidConfigError

logger = logging.getLogger(__name__)

_LONGEST_PROMPT = 160  # tokens that the target writes; a longer one is dropped, as without an end
_FIXED_OF_WORK = ("name", "seed", "top_k", "max_answer_tokens", "num_held_out")


class Pipeline:
    """One distillation in its work folder."""

    def __init__(
        self,
        settings: DistillSettings,
        command: str,
        texts: Callable[[], Sequence[Passage]] = find_passages,
    ) -> None:
        """Opens the work folder.

        Args:
            settings: what to do.
            command: the user's words, for the report.
            texts: finds those that prompts are made from.

        Raises:
            InvalidConfigError: the folder belongs to another distillation, or the target has no
                chat template.
        """
        self._settings = settings
        self._texts = texts
        self._work = WorkFolder(settings.work)
        self._check_work()
        self._note(command)
        self._template = load_template(settings.target)
        self._generator: Generator | None = None

    def run(self, step: str) -> None:
        """Runs one step, or `all`.

        Raises:
            InvalidConfigError: a step before has not been run, or its files don't fit.
        """
        steps = {
            "prompts": self._prompts,
            "answers": self._answers,
            "student": self._student,
            "train": self._train,
            "ngrams": lambda: write_ngrams(self._work),
            "report": self._report,
            "export": self._export,
        }
        for name in STEPS if step == "all" else (step,):
            logger.info("step: %s", name)
            steps[name]()

    def _prompts(self) -> None:
        s = self._settings
        is_done = self._work.prompts.is_file()
        told = {
            "--prompts": [str(file) for file in s.prompt_files] or None,
            "--only-prompts": s.only_files or None,
            "--num-prompts": s.num_prompts,
        }
        self._check_step("prompts", is_done, told)
        if is_done:
            logger.info("%d prompts, made earlier", len(load_prompts(self._work)))
            return
        plan = PromptPlan(
            s.planned_prompts,
            s.num_held_out,
            min(_LONGEST_PROMPT, s.max_answer_tokens),
            s.seed,
            s.prompt_files,
            s.only_files,
        )
        prompts = make_prompts(plan, self._work, self._template, self._target(), self._texts)
        logger.info("%d prompts", len(prompts))

    def _student(self) -> None:
        s = self._settings
        is_searched = s.layers is None and s.student is None and s.start is None
        told = {"--num-layers": s.num_layers} if is_searched else {}
        self._check_step("student", self._work.student.is_file(), told)
        choose_student(s, self._work)

    def _train(self) -> None:
        s = self._settings
        told = {
            "--num-shared": s.num_shared,
            "--head-tokens": s.head_tokens,
            "--from": None if s.start is None else str(s.start.resolve()),
            "--loss": s.loss,
            "--rate": s.rate,
        }
        self._check_step("train", self._work.head.is_file(), told)
        make_trainer(s, self._work).run()

    def _answers(self) -> None:
        s = self._settings
        answer_prompts(
            load_prompts(self._work),
            AnswerPlan(s.top_k, s.max_answer_tokens, s.max_prompt_tokens),
            self._work,
            self._template,
            self._target,
            s.part,
        )
        self._generator = None  # the next steps need its memory

    def _target(self) -> Generator:
        if self._generator is None:
            self._generator = make_generator(self._settings, self._template)
        return self._generator

    def _report(self) -> None:
        draft = load_trained(self._settings, self._work)
        facts = describe(self._settings, self._work)
        write_report(self._settings, self._work, draft, facts)

    def _export(self) -> None:
        out = self._settings.out
        facts = {
            "head_token_ids": self._work.read_head(),
            **describe(self._settings, self._work),
        }
        if self._settings.layers_only:
            save_layers(self._work, facts, out)
        else:
            draft = load_trained(self._settings, self._work)
            save_draft(draft, self._template.tokenizer, facts, out)
        copy_beside(self._work, out)

    def _note(self, command: str) -> None:
        path = self._work.commands
        known = path.read_text("utf-8").splitlines() if path.is_file() else []
        if command not in known:
            write_text(path, "".join(f"{line}\n" for line in [*known, command]))

    def _check_step(self, step: str, is_done: bool, told: Mapping[str, Any]) -> None:
        """Refuses options that come too late, as the step's result is there and stays."""
        path = self._work.told
        noted = json.loads(path.read_text("utf-8")) if path.is_file() else {}
        if not is_done:
            write_json(path, noted | {step: told})
            return
        for option, value in told.items():
            before = noted.get(step, {}).get(option, value)
            if value is not None and before != value:
                raise InvalidConfigError(
                    f"--work {self._work.path}: step {step} was done with {option} {before}, not "
                    f"{value}; name another folder"
                )

    def _check_work(self) -> None:
        noted = self._work.path / "work.json"
        values = {name: asdict(self._settings)[name] for name in _FIXED_OF_WORK}
        if not noted.is_file():
            write_json(noted, values)
        for name, value in json.loads(noted.read_text("utf-8")).items():
            if values.get(name) != value:
                raise InvalidConfigError(
                    f"--work {self._work.path}: was begun with {name} {value}, not "
                    f"{values.get(name)}; name another folder"
                )
