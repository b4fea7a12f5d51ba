"""A draft for load tests of pools: it remembers answers, and takes a given time for each proposal.

How good and how slow it is are parameters, so that a machine without GPUs shows what pools do.
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from specray.errors import SessionRejectedError
from specray.types import Commit, OpenSession, Proposal


class Recalling:
    """Proposes what was answered before; each token is the right one with a given probability."""

    def __init__(self, answers: str, accuracy: float, each_ms: float) -> None:
        """Takes what it is to know.

        Args:
            answers: a file that may be written later: a JSON object a line, with `prompt_ids` and
                `token_ids`.
            accuracy: of each token.
            each_ms: time for each proposal of a batch.
        """
        self._file = Path(answers)
        self._accuracy = accuracy
        self._each_s = each_ms / 1e3
        self._known: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._read_at = 0
        self._texts: dict[int, tuple[int, ...]] = {}
        self._commits: dict[int, Commit] = {}

    def open(self, session: OpenSession) -> None:
        self._read()
        prompt = session.token_ids[: session.num_prompt_tokens]
        self._texts[session.session_id] = prompt + self._known.get(prompt, ())

    def commit(self, commit: Commit) -> None:
        if commit.session_id not in self._texts:
            raise SessionRejectedError("unknown session")
        self._commits[commit.session_id] = commit

    def close(self, session_id: int) -> None:
        self._texts.pop(session_id, None)
        self._commits.pop(session_id, None)

    def propose(self, session_ids: Sequence[int]) -> list[Proposal]:
        time.sleep(self._each_s * len(session_ids))
        return [self._proposal(self._commits[session_id]) for session_id in session_ids]

    def work(self) -> bool:
        return False

    def take_evicted(self) -> list[int]:
        return []

    def _proposal(self, commit: Commit) -> Proposal:
        end = commit.position + len(commit.token_ids)
        luck = np.random.default_rng([commit.session_id, end])
        token_ids = tuple(
            token if luck.random() < self._accuracy else token ^ 1
            for token in self._texts[commit.session_id][end : end + commit.depth]
        )
        return Proposal(
            commit.session_id,
            end,
            commit.token_ids[-1],
            token_ids,
            "model",
            commit_sent_at_ns=commit.sent_at_ns,
        )

    def _read(self) -> None:
        if self._file.exists() and (changed := self._file.stat().st_mtime_ns) != self._read_at:
            self._read_at = changed
            for line in self._file.read_text().splitlines():
                answer = json.loads(line)
                self._known[tuple(answer["prompt_ids"])] = tuple(answer["token_ids"])
