"""The same target without speculation, with vLLM's own, and with drafts in replicas of their own.

Each system is started in turn and meets the same load per GPU, so that systems of 4 and of 5 GPUs
compare at an equal number of them. On a Ray cluster, whose Serve is free for it:

    python -m loadtest.sweep deployments/llama70b.yaml --deploy "serve deploy {file}" \\
        --url http://head:8000 --qps-per-gpu 0.25,0.5,1,2 --result loadtest/results/sweep.json
    python -m loadtest.plot loadtest/results/sweep.json

On one machine `--start "serve run {file}"` runs it as a process that is ended afterwards. Needs
`locust` (loadtest/requirements.txt) on the path or as --locust.
"""

import argparse
import copy
import json
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from specray.cli.bench.report import collect_meta
from specray.models.sources import resolve
from specray.serve.pools import read_pools
from specray.serve.settings import validate

SYSTEMS = ("baseline", "co-located", "disaggregated")
_LOCUSTFILE = Path(__file__).with_name("locustfile.py")
_START_TIMEOUT_S = 1800.0
_STOP_TIMEOUT_S = 60.0
_ORPHANS_TIMEOUT_S = 15.0  # for engines, which notice a little later that they are alone


def main() -> None:
    args = _parser().parse_args()
    rates = [float(rate) for rate in args.qps_per_gpu.split(",")]
    source = yaml.safe_load(args.config.read_text())
    meta = collect_meta(sys.argv[1:], "python -m loadtest.sweep")
    result: dict[str, Any] = {"meta": meta, "systems": {}}
    if args.result.exists():
        result["systems"] = json.loads(args.result.read_text())["systems"]
    for system in args.systems.split(","):
        config = config_of(system, source, json.loads(args.speculative_config))
        gpus = args.gpus or num_gpus(system, source)
        with tempfile.TemporaryDirectory() as folder, _running(config, Path(folder), args):
            groups = _measure(args, [rate * gpus for rate in rates], Path(folder))
        result["systems"][system] = {"gpus": gpus, "groups": groups}
        args.result.write_text(json.dumps(result, indent=1) + "\n")


def config_of(
    system: str, source: dict[str, Any], speculative_config: Any = None
) -> dict[str, Any]:
    """The Serve config of a system, made from that of the disaggregated one."""
    config = copy.deepcopy(source)
    (app,) = config["applications"]
    if system == "baseline":
        app["args"]["speculation"] = {"max_depth": 0}
        app["args"].pop("draft", None)
        app["deployments"] = [e for e in app.get("deployments", []) if e["name"] != "draft"]
    elif system == "co-located":
        given = speculative_config or vllms_own(app["args"])
        app["import_path"] = "ray.serve.llm:build_openai_app"
        target = app["args"]["target"]
        loading = target["model_loading_config"]
        loading["model_source"] = resolve(loading.get("model_source") or loading["model_id"])
        target.setdefault("engine_kwargs", {})["speculative_config"] = given
        app["args"] = {"llm_configs": [target]}
        app.pop("deployments", None)
    elif system != "disaggregated":
        raise SystemExit(f"no system {system!r}; there are {', '.join(SYSTEMS)}")
    return config


def vllms_own(args: dict[str, Any]) -> dict[str, Any]:
    """vLLM's `speculative_config` that comes nearest to a draft of ours, or that of the target."""
    draft, depth = args.get("draft", {}), args.get("speculation", {}).get("max_depth", 5)
    inside = args["target"].get("engine_kwargs", {}).get("speculative_config")
    if inside is not None:
        return {"num_speculative_tokens": depth} | inside
    if "model" in draft and draft.get("method") in ("model", "hybrid"):
        return {
            "method": "draft_model",
            "model": resolve(draft["model"]["model"]),
            "num_speculative_tokens": depth,
        }
    lookup = {"prompt_lookup_max": 8, "prompt_lookup_min": 2}
    return {"method": "ngram", "num_speculative_tokens": depth} | lookup


def num_gpus(system: str, source: dict[str, Any]) -> float:
    """All GPUs of a system, at the most replicas; on a machine without any, 1."""
    (app,) = source["applications"]
    overrides = {entry["name"]: entry for entry in app.get("deployments", [])}
    pools = read_pools(validate(app["args"]), overrides)
    counted = [p for p in pools if p.role == "target" or system == "disaggregated"]
    return sum(pool.gpus * pool.max_replicas for pool in counted) or 1.0


@contextmanager
def served(
    command: Sequence[str], url: str, orphans_timeout_s: float = _ORPHANS_TIMEOUT_S
) -> Iterator[None]:
    """Runs a command that serves, from its first answer on, and ends all that it has started.

    What outlives the command is killed after `orphans_timeout_s`.

    Raises:
        SystemExit: something else serves there, or the command ended or never answered.
    """
    if _answers_at_all(url):
        raise SystemExit(f"something serves at {url} already; it would be measured instead")
    process = psutil.Popen(command, start_new_session=True)
    try:
        _wait_until(lambda: _is_running(process) and _answers(url), f"{url} does not answer")
        yield
    finally:
        _end(process, orphans_timeout_s)


@contextmanager
def _running(config: dict[str, Any], folder: Path, args: argparse.Namespace) -> Iterator[None]:
    file = folder / "serve.yaml"
    file.write_text(yaml.safe_dump(config, sort_keys=False))
    if args.deploy:
        nothing = folder / "nothing.yaml"
        nothing.write_text(yaml.safe_dump(config | {"applications": []}, sort_keys=False))
        _deploy(args.deploy, nothing)
        _wait_until(lambda: not _answers(args.url), f"{args.url} still answers")
        _deploy(args.deploy, file)
        _wait_until(lambda: _answers(args.url), f"{args.url} does not answer")
        yield
    else:
        with served(shlex.split(args.start.format(file=file)), args.url):
            yield


def _end(process: psutil.Popen, orphans_timeout_s: float) -> None:
    """With its descendants: an engine that outlives `serve run` takes the next system's time."""
    if process.poll() is not None:
        return
    family = [process, *process.children(recursive=True)]
    process.send_signal(signal.SIGINT)  # `serve run` ends in order on Ctrl-C only
    with suppress(psutil.TimeoutExpired):
        process.wait(_STOP_TIMEOUT_S)
    _, left = psutil.wait_procs(family, timeout=orphans_timeout_s)
    for straggler in left:
        with suppress(psutil.NoSuchProcess):
            straggler.kill()
    psutil.wait_procs(left, timeout=orphans_timeout_s)


def _answers_at_all(url: str) -> bool:
    try:
        httpx.get(url, timeout=10)
    except httpx.TransportError:
        return False
    return True


def _is_running(process: psutil.Popen) -> bool:
    if process.poll() is not None:
        raise SystemExit(f"the service ended with {process.returncode}")
    return True


def _deploy(command: str, file: Path) -> None:
    subprocess.run(shlex.split(command.format(file=file)), check=True)


def _answers(url: str) -> bool:
    """Whether the service answers a request."""
    try:
        model = httpx.get(f"{url}/v1/models", timeout=10).json()["data"][0]["id"]
        body = {"model": model, "prompt": "1 2 3", "max_tokens": 4}
        return httpx.post(f"{url}/v1/completions", json=body, timeout=60).status_code == 200
    except (httpx.HTTPError, ValueError, KeyError, IndexError):
        return False


def _wait_until(condition: Callable[[], bool], complaint: str) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"{complaint} after {_START_TIMEOUT_S:g} s")
        time.sleep(2.0)


def _measure(args: argparse.Namespace, rates: list[float], folder: Path) -> list[dict[str, Any]]:
    summary = folder / "summary.json"
    options = ["--shape", "stepped", "--qps", ",".join(f"{rate:g}" for rate in rates)]
    options += ["--step-s", f"{args.step_s:g}", "--run-time", f"{args.step_s * len(rates):g}s"]
    options += ["--summary", str(summary), "--host", args.url, *shlex.split(args.load)]
    command = [args.locust, "-f", str(_LOCUSTFILE), "--headless", "--only-summary", *options]
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL)  # 1: some requests failed
    groups: list[dict[str, Any]] = json.loads(summary.read_text())["groups"]
    return groups


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", type=Path, help="the disaggregated system's Serve config")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="which, in this order")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--deploy", help="command that deploys {file} on a cluster and returns")
    how.add_argument("--start", default="serve run {file}", help="command that serves {file}")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--qps-per-gpu", default="0.25,0.5,1,2")
    parser.add_argument("--gpus", type=float, help="of each system, where it can't be worked out")
    parser.add_argument("--step-s", type=float, default=120.0)
    parser.add_argument("--speculative-config", default="null", help="JSON, of the co-located one")
    parser.add_argument(
        "--load", default="--max-tokens 256", help="further options of locustfile.py"
    )
    parser.add_argument("--locust", default="locust")
    parser.add_argument("--result", type=Path, default=Path("sweep.json"), help="added to")
    return parser


if __name__ == "__main__":
    main()
