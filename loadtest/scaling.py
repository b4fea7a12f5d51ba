"""Load up and down: drafts go from 1 to 3 and back and on to 0, targets from 1 to 2 and back.

    python -m loadtest.scaling --json loadtest/results/scaling-COMMIT.json

Starts deployments/local-2x2.yaml with small bounds and short delays in `autoscaling_config` and
specray's autoscaling policy, asks alone, then eight at once, then alone again, and kills the
controller's replica while the pools are large. Then nobody asks, until no draft is left, and at
last one asks again, until one is back. Its drafts recall what the target answered at depth
0 and take a given time for each proposal (`loadtest.recalling_draft`), as this machine has no room
for drafts that are slow by themselves. Every answer is compared with that of depth 0; a difference
counts as equal only where the two likeliest tokens are all but equally likely, as the sums of
batches of other sizes are rounded differently.
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import psutil
import yaml

from loadtest.load.prompts import BUILT_IN, read_prompts
from specray.cli.bench.report import collect_meta
from specray.cli.bench.service import find_ready_url, running, serve_command

ROOT = Path(__file__).parents[1]
MODEL = "smollm2-135m-instruct"
MAX_TOKENS = 64
NUM_PROMPTS = 12
CLOSE_LOGITS = 1e-3  # nats
AT_ONCE = 8
LONGEST_S = {
    "quiet": 40.0,
    "busy": 170.0,
    "quiet again": 110.0,
    "nobody": 90.0,
    "asked again": 90.0,
}
AFTER_KILL_S = 20.0
DRAFTS = "draft"
POOLS = ("targets", "drafts")
FEW = {"targets": 1, "drafts": 1}


class Answer(NamedTuple):
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]


@dataclass(slots=True)
class Counts:
    """What became of the requests of a phase."""

    asked: int = 0
    failed: int = 0
    identical: int = 0
    close: int = 0  # differ where the target is all but undecided
    different: int = 0
    errors: list[str] = field(default_factory=list)


def config(port: int, answers: Path, each_ms: float, accuracy: float) -> dict[str, Any]:
    """The deployment, with what is measured here."""
    made: dict[str, Any] = yaml.safe_load((ROOT / "deployments" / "local-2x2.yaml").read_text())
    made["http_options"]["port"] = port
    (app,) = made["applications"]
    app["autoscaling_policy"] = {"policy_function": "specray.serve.scaling:scale_pools"}
    args = app["args"]
    args["target"]["engine_kwargs"]["max_num_seqs"] = AT_ONCE // 2
    args["target"]["deployment_config"] = _scaled(1, 2, args["target"]["deployment_config"])
    args["draft"] = {
        "method": "custom",
        "cpus": [0],
        "custom": {
            "import_path": "loadtest.recalling_draft:Recalling",
            "kwargs": {"answers": str(answers), "accuracy": accuracy, "each_ms": each_ms},
        },
        "deployment_config": _scaled(0, 3, args["draft"]["deployment_config"]),
    }
    args["speculation"] |= {"max_depth": 4, "max_wait_ms": 300}
    return made


def _scaled(fewest: int, most: int, options: dict[str, Any]) -> dict[str, Any]:
    """A pool's options, with Serve's own autoscaling in place of a number of replicas."""
    rest = {name: value for name, value in options.items() if name != "num_replicas"}
    delays = {"upscale_delay_s": 4, "downscale_delay_s": 10}
    bounds = {"min_replicas": fewest, "max_replicas": most}
    return rest | {"autoscaling_config": {**bounds, **delays}}


class Load:
    """Asks the service, and looks at its pools every second."""

    def __init__(self, url: str, service: psutil.Process, prompts: Sequence[Any]) -> None:
        self.url = url
        self._service = service
        self._prompts = prompts
        self._expected: dict[int, Answer] = {}
        self.started = time.monotonic()
        self.timeline: list[dict[str, Any]] = []
        self.counts: dict[str, Counts] = {}

    def learn(self, file: Path) -> None:
        """The answers at depth 0, for comparison and for the drafts."""
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda i: self._ask(i, 0), range(len(self._prompts))))
        self._expected = dict(enumerate(answers))
        file.write_text("".join(json.dumps(answer._asdict()) + "\n" for answer in answers))

    def phase(self, name: str, at_once: int, is_over: Callable[[], bool]) -> None:
        """Keeps so many requests going until it is over, or for as long as it may take."""
        counts = self.counts.setdefault(name, Counts())
        numbers, lock, stop = count(), threading.Lock(), threading.Event()

        def ask() -> None:
            while not stop.is_set():
                with lock:
                    number = next(numbers) % len(self._prompts)
                self._check(number, counts, lock)

        threads = [threading.Thread(target=ask) for _ in range(at_once)]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + LONGEST_S[name]
        while time.monotonic() < deadline and not is_over():
            time.sleep(1.0)
            self._look(name)
        stop.set()
        for thread in threads:
            thread.join()

    def kill_controller(self) -> None:
        """As the kernel would when memory is short."""
        for process in self._service.children(recursive=True):
            if any("ServeReplica:specray:controller" in part for part in _command(process)):
                process.send_signal(signal.SIGKILL)

    def replicas(self) -> tuple[int, int]:
        """Targets and drafts that the controller last heard of."""
        heard = [at["heard"] for at in self.timeline if at["heard"] is not None]
        return (heard[-1]["targets"], heard[-1]["drafts"]) if heard else (0, 0)

    def wanted(self, pool: str) -> int:
        """What the controller last decided; while it is dead that would be carried out, too."""
        heard = [at["heard"] for at in self.timeline if at["heard"] is not None]
        wanted: int = heard[-1]["wanted"].get(pool, 0) if heard else 0
        return wanted

    def at_end_of(self, phase: str) -> dict[str, int]:
        """What the controller last heard of in it."""
        looks = [at["heard"] for at in self.timeline if at["phase"] == phase and at["heard"]]
        return {pool: looks[-1][pool] for pool in POOLS} if looks else dict.fromkeys(POOLS, -1)

    def peak(self) -> tuple[int, int]:
        """The most of each at any time."""
        heard = [at["heard"] for at in self.timeline if at["heard"] is not None]
        return max(at["targets"] for at in heard), max(at["drafts"] for at in heard)

    def _look(self, phase: str) -> None:
        at_s = round(time.monotonic() - self.started, 1)
        titles = [part for p in self._service.children(recursive=True) for part in _command(p)]
        processes = {
            kind: sum(f"ServeReplica:specray:{name}" in title for title in titles)
            for kind, name in (("targets", "target"), ("drafts", "draft"))
        }
        self.timeline.append(
            {"at_s": at_s, "phase": phase, "processes": processes, "heard": self._heard()}
        )

    def _heard(self) -> dict[str, Any] | None:
        """What the controller knows; None while it is being replaced."""
        try:
            reply = httpx.get(f"{self.url}/speculation", timeout=5.0)
        except httpx.TransportError:
            return None
        if reply.status_code != httpx.codes.OK or not (known := reply.json())["is_complete"]:
            return None
        roles = [member["role"] for member in known["members"]]
        decisions = {d["subject"]: d for d in known["decisions"]}
        return {
            "targets": roles.count("target"),
            "drafts": roles.count("draft"),
            "wanted": {s: d["value"] for s, d in decisions.items()},
            "reasons": {s: d["reason"] for s, d in decisions.items()},
            "inputs": {s: dict(d["inputs"]) for s, d in decisions.items() if s == DRAFTS},
        }

    def _check(self, number: int, counts: Counts, lock: threading.Lock) -> None:
        try:
            answer = self._ask(number)
        except (httpx.HTTPError, KeyError, AssertionError) as error:
            with lock:
                counts.asked, counts.failed = counts.asked + 1, counts.failed + 1
                counts.errors.append(f"{type(error).__name__}: {error}"[:300])
            return
        verdict = self._compare(self._expected[number], answer)
        with lock:
            counts.asked += 1
            setattr(counts, verdict, getattr(counts, verdict) + 1)

    def _compare(self, expected: Answer, answer: Answer) -> str:
        if answer == expected:
            return "identical"
        pairs = zip(expected.token_ids, answer.token_ids, strict=True)
        place = next(i for i, (a, b) in enumerate(pairs) if a != b)
        token_ids = [*expected.prompt_ids, *expected.token_ids[:place]]
        body = {"model": MODEL, "prompt": token_ids, "max_tokens": 1, "temperature": 0}
        reply = httpx.post(f"{self.url}/v1/completions", json=body | {"logprobs": 2}, timeout=120)
        likely = reply.json()["choices"][0]["logprobs"]["top_logprobs"][0].values()
        first, second = sorted(likely)[::-1][:2]
        return "close" if first - second < CLOSE_LOGITS else "different"

    def _ask(self, number: int, depth: int | None = None) -> Answer:
        body = {
            "model": MODEL,
            "messages": self._prompts[number],
            "temperature": 0,
            "max_tokens": MAX_TOKENS,
            "ignore_eos": True,
            "return_token_ids": True,
            "vllm_xargs": {} if depth is None else {"num_speculative_tokens": depth},
        }
        reply = httpx.post(f"{self.url}/v1/chat/completions", json=body, timeout=300.0)
        reply.raise_for_status()
        choice = reply.json()["choices"][0]
        assert len(choice["token_ids"]) == MAX_TOKENS
        return Answer(tuple(reply.json()["prompt_token_ids"]), tuple(choice["token_ids"]))


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []  # it has just ended


def measure(load: Load, answers: Path) -> dict[str, Any]:
    """All phases; returns what the pools did while the controller was dead."""
    load.learn(answers)
    quiet_until = time.monotonic() + 25.0
    load.phase("quiet", 1, lambda: time.monotonic() > quiet_until)
    killed: list[float] = []

    def is_large_and_orphaned() -> bool:
        if not killed and load.replicas() == (2, 3) and load.wanted(DRAFTS) >= 3:
            load.kill_controller()
            killed.append(time.monotonic() - load.started)
        return bool(killed) and load.timeline[-1]["at_s"] - killed[0] > AFTER_KILL_S

    load.phase("busy", AT_ONCE, is_large_and_orphaned)
    num_before = len(load.timeline)
    subprocess.run([sys.executable, "-m", "specray.cli", "explain", load.url], check=True)
    load.phase("quiet again", 1, lambda: load.replicas() == (1, 1))
    load.phase("nobody", 0, lambda: load.replicas() == (1, 0))
    load.phase("asked again", 1, lambda: load.replicas() == (1, 1))
    if not killed:
        return {}
    after = [at for at in load.timeline[:num_before] if at["at_s"] >= killed[0]]
    return {
        "killed_at_s": round(killed[0], 1),
        "heard_of_again_at_s": next((at["at_s"] for at in after if at["heard"]), None),
        "fewest_targets": min(at["processes"]["targets"] for at in after),
        "fewest_drafts": min(at["processes"]["drafts"] for at in after),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--json", type=Path, required=True, help="where the result goes")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--each-ms", type=float, default=30.0, help="a proposal takes a draft")
    parser.add_argument("--accuracy", type=float, default=0.97, help="of each proposed token")
    args = parser.parse_args()
    prompts = read_prompts(BUILT_IN)[:NUM_PROMPTS]
    with tempfile.TemporaryDirectory() as folder:
        answers, file = Path(folder) / "answers.jsonl", Path(folder) / "config.yaml"
        made = config(args.port, answers, args.each_ms, args.accuracy)
        file.write_text(yaml.safe_dump(made))
        with running(serve_command(str(file)), find_ready_url) as service:
            process = psutil.Process(service.process.pid)
            load = Load(service.url.removesuffix("/v1"), process, prompts)
            orphaned = measure(load, answers)
    counts = {name: asdict(phase) for name, phase in load.counts.items()}
    result = {
        "meta": collect_meta(sys.argv[1:], "python -m loadtest.scaling"),
        "config": {"each_ms": args.each_ms, "accuracy": args.accuracy, "at_once": AT_ONCE},
        "peak": dict(zip(POOLS, load.peak(), strict=True)),
        "at_end_of": {name: load.at_end_of(name) for name in LONGEST_S},
        "while_the_controller_was_replaced": orphaned,
        "requests": counts,
        "timeline": load.timeline,
    }
    args.json.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({k: result[k] for k in result if k != "timeline"}, indent=1))
    ends = result["at_end_of"]
    is_lossless = not any(phase["failed"] or phase["different"] for phase in counts.values())
    holds = (orphaned.get("fewest_targets"), orphaned.get("fewest_drafts")) == (2, 3)
    follows = load.peak() == (2, 3) and ends["quiet again"] == ends["asked again"] == FEW
    follows &= ends["quiet"]["targets"] == 1 <= ends["quiet"]["drafts"]
    is_gone = ends["nobody"] == FEW | {"drafts": 0}
    return 0 if is_lossless and holds and follows and is_gone else 1


if __name__ == "__main__":
    sys.exit(main())
