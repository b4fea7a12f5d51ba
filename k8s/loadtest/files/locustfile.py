"""Load for an OpenAI-compatible service, with Locust: streamed chat completions in an open loop.

    locust -f loadtest/locustfile.py --headless --host http://127.0.0.1:8000 \\
        --shape stepped --qps 0.5,1,2,4 --step-s 60 --run-time 4m \\
        --html report.html --summary run.json

`--users` only spreads the sending over workers: the rate is what `--qps` says, for all together.
Beside each request Locust's report lists TTFT, TPOT, ITL (a gap between two chunks) and E2E, in
milliseconds, and tokens/s of single answers; the size of an E2E row is its tokens, as the
service counted them. Nothing is tokenised here.
"""

import json
import random
import shlex
import sys
import time
from collections import defaultdict
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import gevent
from gevent.pool import Pool
from geventhttpclient.response import HTTPParseError
from load.arrivals import Load
from load.prompts import BUILT_IN, read_prompts
from load.stream import BrokenAnswerError, Timing, read_answer
from load.summary import Group
from locust import FastHttpUser, constant, events, task
from locust.env import Environment
from locust.runners import WorkerRunner

_PATH = "/v1/chat/completions"
_LAST_ANSWERS_S = 120  # for answers that are under way at the end


@events.init_command_line_parser.add_listener
def _add_options(parser: Any) -> None:
    group = parser.add_argument_group("specray")
    group.add_argument("--shape", default="poisson", help="constant, poisson, stepped or burst")
    group.add_argument("--qps", default="1", help="requests per second; several for stepped: 1,2,4")
    group.add_argument(
        "--step-s", type=float, default=60.0, help="length of a step, or of a burst's period"
    )
    group.add_argument(
        "--prompts", default=str(BUILT_IN), help="file or folder; ShareGPT's format too"
    )
    group.add_argument("--max-tokens", type=int, default=64)
    group.add_argument("--temperature", type=float, default=0.0)
    group.add_argument("--speculation", default="on", help="on, off, or mixed: by turns")
    group.add_argument("--model", default="", help="the first one served, if left out")
    group.add_argument("--seed", type=int, default=0)
    group.add_argument("--summary", default="", metavar="FILE", help="JSON; of this process only")


@events.test_start.add_listener
def _start(environment: Environment, **_: Any) -> None:
    """Not at init: workers get the master's options with the start of the test."""
    options = environment.parsed_options
    rates = tuple(float(rate) for rate in options.qps.split(","))
    environment.load = Load(options.shape, rates, options.step_s)
    environment.prompts = read_prompts(Path(options.prompts))
    environment.groups = defaultdict(dict)
    environment.user_numbers = count()
    environment.stop_timeout = environment.stop_timeout or _LAST_ANSWERS_S
    environment.started = time.perf_counter()


@events.quitting.add_listener
def _report(environment: Environment, **_: Any) -> None:
    options = environment.parsed_options
    if options.summary and not isinstance(environment.runner, WorkerRunner):
        groups = [g.report() for by_kind in environment.groups.values() for g in by_kind.values()]
        meta = {
            "command": shlex.join(["locust", *sys.argv[1:]]),
            "date": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime()),
        }
        Path(options.summary).write_text(
            json.dumps({"meta": meta, "groups": groups}, indent=1) + "\n"
        )


class OpenAIUser(FastHttpUser):
    """Sends when the load says so, and does not wait for answers before it sends the next."""

    wait_time = constant(0)
    connection_timeout = network_timeout = 300.0

    def on_start(self) -> None:
        options = self.environment.parsed_options
        self._options = options
        self._pool = Pool()
        worker = self.environment.runner.worker_index
        number = next(self.environment.user_numbers)
        self._rng = random.Random(f"{options.seed} {worker} {number}")  # the same in each run
        share = 1 / (options.num_users or 1)
        self._arrivals = self.environment.load.arrivals(self._rng, share)
        self._num_sent = 0
        self._model = options.model or self.client.get("/v1/models").json()["data"][0]["id"]

    def on_stop(self) -> None:
        self._pool.join(timeout=_LAST_ANSWERS_S)

    @task
    def send_the_next(self) -> None:
        """Wait for the next arrival, and send it in a greenlet of its own."""
        at_s = next(self._arrivals)
        gevent.sleep(max(0.0, at_s - self._now_s()))
        self._pool.spawn(self._ask, self.environment.load, self._num_sent, self._now_s())
        self._num_sent += 1

    def _ask(self, load: Load, number: int, sent_s: float) -> None:
        mode = self._options.speculation
        speculation = ("on", "off")[number % 2] if mode == "mixed" else mode
        qps = load.rates[load.step(sent_s)]
        timing = self._stream(self._body(number, speculation), f"{speculation} at {qps:g} QPS")
        groups = self.environment.groups[qps]
        group = groups.setdefault(speculation, Group(qps, speculation))
        group.add(timing, sent_s, self._now_s())

    def _body(self, number: int, speculation: str) -> dict[str, Any]:
        prompts = self.environment.prompts
        body = {
            "model": self._model,
            "messages": prompts[
                (number // (2 if self._options.speculation == "mixed" else 1)) % len(prompts)
            ],
            "max_tokens": self._options.max_tokens,
            "temperature": self._options.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return body | (
            {"vllm_xargs": {"num_speculative_tokens": 0}} if speculation == "off" else {}
        )

    def _stream(self, body: dict[str, Any], name: str) -> Timing | None:
        started = time.perf_counter()
        with self.client.post(
            _PATH, json=body, stream=True, catch_response=True, name=name
        ) as reply:
            if reply.status_code != 200:
                reply.failure(f"status {reply.status_code}: {(reply.text or reply.error)!s:.300}")
                return None
            try:
                timing = read_answer(iter(partial(reply.stream.readline, b"\n"), b""), started)
            except (BrokenAnswerError, HTTPParseError, OSError) as error:
                reply.failure(f"{error!r:.300}")
                return None
        self._publish(timing, name)
        return timing

    def _publish(self, timing: Timing, name: str) -> None:
        """One entry of Locust's report for each figure; after the answer, so as not to delay it."""
        tokens_per_s = timing.num_tokens / timing.e2e_s
        figures = [("TTFT", timing.ttft_s), ("E2E", timing.e2e_s)]
        figures += [("ITL", gap) for gap in timing.gaps_s]
        figures += [] if timing.tpot_s is None else [("TPOT", timing.tpot_s)]
        for kind, seconds in figures:
            self._fire(kind, name, 1000 * seconds, timing.num_tokens if kind == "E2E" else 0)
        self._fire("tokens/s", name, tokens_per_s, 0)

    def _fire(self, kind: str, name: str, value: float, size: int) -> None:
        self.environment.events.request.fire(
            request_type=kind,
            name=name,
            response_time=value,
            response_length=size,
            exception=None,
            context={},
        )

    def _now_s(self) -> float:
        return time.perf_counter() - self.environment.started
