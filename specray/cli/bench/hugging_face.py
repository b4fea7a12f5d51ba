"""transformers' `generate` in a process of its own, asked in JSON lines: no HTTP, one at a time.

    python -m specray.cli.bench.hugging_face METHOD TARGET [DRAFT]

says `{"ready": true}`, then answers each `{"prompt": ..., "temperature": ..., "max_tokens": ...,
"seed": ..., "depth": ...}` with `{"num_tokens": ..., "duration_s": ...}`.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from specray.cli.bench.client import Request
from specray.errors import StartupError

_LOG_TAIL_CHARS = 2000
_STOP_TIMEOUT_S = 30.0


class Generation:
    """The process, from our end."""

    def __init__(self, process: subprocess.Popen[str], log: Any) -> None:
        self._process = process
        self._log = log
        self._receive()  # ready

    def time_answers(self, requests: Iterable[Request], depth: int | None) -> float:
        """Tokens per second of whole answers, one after the other, prefill included.

        Raises:
            StartupError: the process has ended; with the end of what it said.
        """
        num_tokens, duration_s = 0, 0.0
        for request in requests:
            answer = self._ask(
                {
                    "prompt": request.prompt,
                    "temperature": request.temperature,
                    "max_tokens": request.max_tokens,
                    "seed": request.seed,
                    "depth": depth,
                }
            )
            num_tokens += answer["num_tokens"]
            duration_s += answer["duration_s"]
        return num_tokens / duration_s

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        if self._process.stdin is not None and self._process.poll() is None:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        return self._receive()

    def _receive(self) -> dict[str, Any]:
        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        if not line:
            self._log.seek(0)
            raise StartupError(f"generate ended:\n{self._log.read()[-_LOG_TAIL_CHARS:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def run_generation(
    method: str, target: str, draft: str | None, command: list[str] | None = None
) -> Iterator[Generation]:
    """Starts the process, yields it once its models are loaded, and ends it whatever happens.

    Args:
        method: as `specray.models.generation.Generator` takes it.
        target: a model's folder or hub id.
        draft: likewise.
        command: what to run instead.

    Raises:
        StartupError: the models can't be loaded, or the process has ended.
    """
    words = [method, target, *([draft] if draft is not None else [])]
    command = command or [sys.executable, "-m", "specray.cli.bench.hugging_face", *words]
    with tempfile.TemporaryFile("w+", encoding="utf-8") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
        try:
            yield Generation(process, log)
        finally:
            process.kill()
            with suppress(subprocess.TimeoutExpired):  # its pipes may outlive it
                process.communicate(timeout=_STOP_TIMEOUT_S)
            process.wait()


def main() -> None:
    """Answers until stdin ends."""
    from specray.models.generation import Generator

    method, target, *drafts = sys.argv[1:]
    generator = Generator(method, target, drafts[0] if drafts else None)  # type: ignore[arg-type]
    _say({"ready": True})
    for line in sys.stdin:
        _say(generator.answer(**json.loads(line))._asdict())


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
