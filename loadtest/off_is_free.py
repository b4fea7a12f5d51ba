"""What speculation costs where it brings nothing: at depth 0, and with a draft always wrong.

    python -m loadtest.off_is_free --json loadtest/results/off-is-free.json

First the service at depth 0 beside plain Ray Serve LLM without any plug-in of ours, both started at
once and asked in turn. Then the service with `loadtest.wrong_draft` and without a stop-gap, whose
copies would hide what the draft costs, each measurement of it between two with speculation off.
"""

import argparse
import asyncio
import copy
import json
import os
import sys
import tempfile
from collections.abc import Sequence
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
from specray.cli.bench.service import find_ready_url, running, serve_command
from specray.cli.bench.workloads import load_prompts

WARM_UP_STEPS = 50  # an unknown draft is found out in these
AT_ONCE = (1, 8)
# Short cells: a machine that is slow for half of each minute then hits both sides alike.
_PLAN = {"num_answers": 1, "ramp_s": 3.0, "window_s": 12.0}
_PORTS = (18090, 18091)

Asked = tuple[Endpoint, int | None]  # a service, and the most that it may speculate by
Extent = tuple[int, tuple[int, ...]]  # rounds, and requests at once


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, default=Path("deployments/local.yaml"))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--at-once", type=int, action="append", help="requests; default: 1 and 8")
    parser.add_argument("--only", choices=("depth-0", "wrong-draft"))
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    meta = collect_meta([]) | {
        "command": " ".join(["python -m loadtest.off_is_free", *sys.argv[1:]])
    }
    source = yaml.safe_load(args.config.read_text())
    extent = args.rounds, tuple(args.at_once or AT_ONCE)
    result: dict[str, Any] = {"meta": meta}
    with tempfile.TemporaryDirectory() as folder:
        if args.only != "wrong-draft":
            result["depth 0 over plain Ray Serve LLM"] = depth_0(source, Path(folder), extent)
        if args.only != "depth-0":
            result["wrong draft over off"] = wrong_draft(source, Path(folder), extent)
    if args.json is not None:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


def depth_0(source: dict[str, Any], folder: Path, extent: Extent) -> list[dict[str, Any]]:
    plain = _write(folder / "plain.yaml", plain_config(source), _PORTS[0])
    ours = _write(folder / "ours.yaml", source, _PORTS[1])
    alone = {"RAY_ADDRESS": "local"}
    with (
        running(
            [str(Path(sys.executable).with_name("serve")), "run", plain], _find_serve_url, alone
        ) as first,
        running(serve_command(ours), find_ready_url) as second,
    ):
        return asyncio.run(_compare((first.url, None), (second.url, 0), extent))


def wrong_draft(source: dict[str, Any], folder: Path, extent: Extent) -> list[dict[str, Any]]:
    config = copy.deepcopy(source)
    (app,) = config["applications"]
    app["args"]["draft"] = {
        **{key: app["args"]["draft"][key] for key in ("cpus", "deployment_config")},
        "method": "custom",
        "custom": {"import_path": "loadtest.wrong_draft:WrongDraft"},
    }
    app["args"].setdefault("speculation", {})["stop_gap"] = False
    ours = _write(folder / "wrong.yaml", config, _PORTS[1])
    path = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])
    with running(serve_command(ours), find_ready_url, {"PYTHONPATH": path}) as service:
        return asyncio.run(_compare((service.url, 0), (service.url, None), extent))


def plain_config(source: dict[str, Any]) -> dict[str, Any]:
    """The same target under `ray.serve.llm`, with nothing of ours and no speculation."""
    config = config_of("co-located", source, {"unused": True})
    (app,) = config["applications"]
    del app["args"]["llm_configs"][0]["engine_kwargs"]["speculative_config"]
    return config


async def _compare(
    base: tuple[str, int | None], tried: tuple[str, int | None], extent: Extent
) -> list[dict[str, Any]]:
    """Tokens per second of the second over those of the first, by requests at once."""
    asked = [(Endpoint(url), depth) for url, depth in (base, tried)]
    prompts = load_prompts("mixed")
    for endpoint, _ in asked:
        await endpoint.start()
        await warm_up(endpoint, prompts[:16])
    try:
        num_rounds, at_once = extent
        return [await _cell(asked, at, prompts, num_rounds) for at in at_once]
    finally:
        for endpoint, _ in asked:
            await endpoint.close()


async def _cell(
    asked: Sequence[Asked], at_once: int, prompts: Sequence[str], num_rounds: int
) -> dict[str, Any]:
    plan = Plan((), num_rounds, max_tokens=WARM_UP_STEPS + 110, **_PLAN)
    cell = Cell("mixed", at_once, 0.0)
    rounds = []
    for index in range(num_rounds):

        async def speed(which: int, index: int = index) -> float:
            endpoint, depth = asked[which]
            queues = make_queues(cell, prompts, index, plan.max_tokens, depth)
            return await measure_speed(endpoint, queues, plan)

        # First, second, second, first: a machine that drifts favours neither.
        speeds = [await speed(which) for which in (0, 1, 1, 0)]
        ratio = (speeds[1] + speeds[2]) / (speeds[0] + speeds[3])
        rounds.append({"tokens_per_s": [round(x, 2) for x in speeds], "ratio": round(ratio, 4)})
        print(f"{at_once} at once, round {index + 1}: {rounds[-1]}", flush=True)
    ratio = median(row["ratio"] for row in rounds)
    print(f"{at_once} at once: median ratio {ratio:.3f}", flush=True)
    return {"at_once": at_once, "median_ratio": ratio, "rounds": rounds}


def _find_serve_url(_: Sequence[str]) -> str | None:
    """`serve run` does not say when the application of a file is ready."""
    url = f"http://127.0.0.1:{_PORTS[0]}"
    try:
        return url if httpx.get(f"{url}/v1/models", timeout=5.0).json()["data"] else None
    except (httpx.HTTPError, ValueError, KeyError):
        return None


def _write(path: Path, config: dict[str, Any], port: int) -> str:
    config = copy.deepcopy(config)
    config["http_options"] = {"host": "127.0.0.1", "port": port}
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return str(path)


if __name__ == "__main__":
    main()
