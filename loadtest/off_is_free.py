"""What speculation costs where it brings nothing: at depth 0, and with a draft always wrong.

    python -m loadtest.off_is_free --json loadtest/results/off-is-free.json

First the service at depth 0 beside plain Ray Serve LLM without any plug-in of ours, and beside the
same with our executor (on a CPU we need no worker process, see `specray.serve.target_engine`), so
that what that brings is not taken for the plug-ins'; all started at once and asked in turn. Then
the service with `loadtest.wrong_draft` and without a stop-gap, whose copies would hide what the
draft costs, in turn with speculation off.
"""

import argparse
import asyncio
import copy
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import yaml

from loadtest.sweep import config_of
from specray.cli.bench.client import Endpoint
from specray.cli.bench.load import make_queues, measure_speed
from specray.cli.bench.plan import Cell, Plan
from specray.cli.bench.report import collect_meta
from specray.cli.bench.runner import warm_up
from specray.cli.bench.service import Running, find_ready_url, running, serve_command
from specray.cli.bench.workloads import load_prompts

WARM_UP_STEPS = 50  # an unknown draft is found out in these
AT_ONCE = (1, 8)
# Short cells: a machine that is slow for half of each minute then hits both sides alike.
_PLAN = {"num_answers": 1, "ramp_s": 3.0, "window_s": 12.0}
_PORTS = (18090, 18091, 18092)
_ENGINE = {"RAYLLM_VLLM_ENGINE_CLS": "specray.serve.target_engine.TargetEngine"}

Asked = tuple[str, int | None]  # a service's URL, and the most that it may speculate by
Extent = tuple[int, tuple[int, ...]]  # rounds, and requests at once


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, default=Path("deployments/local.yaml"))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--at-once", type=int, action="append", help="requests; default: 1 and 8")
    parser.add_argument("--only", choices=("depth-0", "wrong-draft"))
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    meta = collect_meta(sys.argv[1:], "python -m loadtest.off_is_free")
    source = yaml.safe_load(args.config.read_text())
    extent = args.rounds, tuple(args.at_once or AT_ONCE)
    result: dict[str, Any] = {"meta": meta}
    with tempfile.TemporaryDirectory() as folder:
        if args.only != "wrong-draft":
            result["depth 0"] = depth_0(source, Path(folder), extent)
        if args.only != "depth-0":
            result["wrong draft"] = wrong_draft(source, Path(folder), extent)
    if args.json is not None:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


def depth_0(source: dict[str, Any], folder: Path, extent: Extent) -> list[dict[str, Any]]:
    plain = _write(folder / "plain.yaml", plain_config(source), _PORTS[0])
    like_ours = plain_config(source, has_our_executor=True)
    same = _write(folder / "same-executor.yaml", like_ours, _PORTS[1])
    ours = _write(folder / "ours.yaml", source, _PORTS[2])
    with (
        _running_plain(plain, _PORTS[0]) as first,
        _running_plain(same, _PORTS[1]) as second,
        running(serve_command(ours), find_ready_url) as third,
    ):
        bases = {"plain": (first.url, None), "plain with our executor": (second.url, None)}
        return asyncio.run(_compare(bases, (third.url, 0), extent))


def wrong_draft(source: dict[str, Any], folder: Path, extent: Extent) -> list[dict[str, Any]]:
    config = copy.deepcopy(source)
    (app,) = config["applications"]
    app["args"]["draft"] = {
        **{key: app["args"]["draft"][key] for key in ("cpus", "deployment_config")},
        "method": "custom",
        "custom": {"import_path": "loadtest.wrong_draft:WrongDraft"},
    }
    app["args"].setdefault("speculation", {})["stop_gap"] = False
    ours = _write(folder / "wrong.yaml", config, _PORTS[2])
    path = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])
    with running(serve_command(ours), find_ready_url, {"PYTHONPATH": path}) as service:
        bases: dict[str, Asked] = {"off": (service.url, 0)}
        return asyncio.run(_compare(bases, (service.url, None), extent))


def plain_config(source: dict[str, Any], *, has_our_executor: bool = False) -> dict[str, Any]:
    """The same target under `ray.serve.llm`, with none of our plug-ins and no speculation.

    Our executor comes with our engine class: Ray Serve LLM 2.60 replaces the `engine_kwargs`'
    `distributed_executor_backend`, on a CPU without a word.
    """
    config = config_of("co-located", source, {"unused": True})
    (app,) = config["applications"]
    (target,) = app["args"]["llm_configs"]
    del target["engine_kwargs"]["speculative_config"]
    if has_our_executor:
        target.setdefault("runtime_env", {}).setdefault("env_vars", {}).update(_ENGINE)
    return config


async def _compare(
    bases: Mapping[str, Asked], tried: Asked, extent: Extent
) -> list[dict[str, Any]]:
    """Tokens per second of what is tried over those of each of the others, by requests at once."""
    asked = [(Endpoint(url), depth) for url, depth in (*bases.values(), tried)]
    prompts = load_prompts("mixed")
    for endpoint, _ in asked:
        await endpoint.start()
        await warm_up(endpoint, prompts[:16])
    try:
        num_rounds, at_once = extent
        return [await _cell(tuple(bases), asked, at, prompts, num_rounds) for at in at_once]
    finally:
        for endpoint, _ in asked:
            await endpoint.close()


async def _cell(
    names: Sequence[str],
    asked: Sequence[tuple[Endpoint, int | None]],
    at_once: int,
    prompts: Sequence[str],
    num_rounds: int,
) -> dict[str, Any]:
    plan = Plan((), num_rounds, max_tokens=WARM_UP_STEPS + 110, **_PLAN)
    cell = Cell("mixed", at_once, 0.0)
    rounds = []
    for index in range(num_rounds):
        speeds: list[list[float]] = [[] for _ in asked]
        # There and back again: a machine that drifts favours none.
        for which in (*range(len(asked)), *reversed(range(len(asked)))):
            endpoint, depth = asked[which]
            first = plan.first_prompt(cell, index)
            queues = make_queues(cell, prompts, first, plan.max_tokens, depth, ignore_eos=True)
            speeds[which].append(round(await measure_speed(endpoint, queues, plan), 2))
        rounds.append({"tokens_per_s": speeds, "ratios": ratios(names, speeds)})
        print(f"{at_once} at once, round {index + 1}: {rounds[-1]}", flush=True)
    medians = {
        f"to {name}": median(row["ratios"][f"to {name}"] for row in rounds) for name in names
    }
    print(f"{at_once} at once: median ratios {medians}", flush=True)
    return {"at_once": at_once, "median_ratios": medians, "rounds": rounds}


def ratios(names: Sequence[str], speeds: Sequence[Sequence[float]]) -> dict[str, float]:
    """What the last made, to each of the others; these are named in their order."""
    return {
        f"to {name}": round(sum(speeds[-1]) / sum(base), 4)
        for name, base in zip(names, speeds[:-1], strict=True)
    }


@contextmanager
def _running_plain(file: str, port: int) -> Iterator[Running]:
    """Ray Serve LLM on a Ray of its own. `serve run` does not say when a file's app is ready."""
    url = f"http://127.0.0.1:{port}"

    def find_url(_: Sequence[str]) -> str | None:
        try:
            return url if httpx.get(f"{url}/v1/models", timeout=5.0).json()["data"] else None
        except (httpx.HTTPError, ValueError, KeyError):
            return None

    serve = str(Path(sys.executable).with_name("serve"))
    with running([serve, "run", file], find_url, {"RAY_ADDRESS": "local"}) as service:
        yield service


def _write(path: Path, config: dict[str, Any], port: int) -> str:
    config = copy.deepcopy(config)
    config["http_options"] = {"host": "127.0.0.1", "port": port}
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return str(path)


if __name__ == "__main__":
    main()
