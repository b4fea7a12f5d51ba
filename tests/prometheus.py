"""A real Prometheus, where the machine has one; `make setup` takes it from apt."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import yaml

ROOT = Path(__file__).parents[1]
RULES = ROOT / "k8s" / "prometheus" / "rules.yaml"
DASHBOARD = ROOT / "k8s" / "components" / "monitoring" / "dashboard.json"

RARE = ("specray_wait_seconds",)
"""Metrics of what may not happen while a test runs: steps are held back only where that pays."""


def program(name: str) -> str:
    """The path of `prometheus` or `promtool`; skips the test if there is none."""
    path = shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if path is None:
        pytest.skip(f"{name} is not installed; `make setup` takes it from apt where there is one")
    return path


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    """What promtool says."""
    command = [program("promtool"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


class Query(NamedTuple):
    """An expression, and where it stands."""

    place: str
    expr: str


def groups() -> list[dict[str, Any]]:
    return list(yaml.safe_load(RULES.read_text())["groups"])


def recordings() -> dict[str, str]:
    return {r["record"]: r["expr"] for group in groups() for r in group["rules"] if "record" in r}


def alerts() -> dict[str, dict[str, Any]]:
    return {r["alert"]: r for group in groups() for r in group["rules"] if "alert" in r}


def rule_queries() -> list[Query]:
    """What rules ask for; of an alert, the side that is compared with its threshold."""
    asked = [Query(name, expr) for name, expr in recordings().items()]
    for name, alert in alerts().items():
        if "absent(" not in alert["expr"]:
            side = re.fullmatch(r"(.+?) (?:==|<|>) [\d.]+", alert["expr"])
            assert side, f"{name} compares with no threshold"
            asked.append(Query(name, side[1]))
    return asked


def dashboard_queries() -> list[Query]:
    """What panels ask for, Grafana's variables filled in."""
    filled = {"$__rate_interval": "5m", "$namespace": ".*", "$app": ".*", "$model": ".*"}
    asked = []
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", []):
            expr = target["expr"]
            for variable, value in filled.items():
                expr = expr.replace(variable, value)
            asked.append(Query(f"{panel['title']}, {target['legendFormat']}", expr))
    return asked


def metrics_in(expr: str) -> set[str]:
    """The metrics that an expression names."""
    return set(re.findall(r"\b(?:ray_(?!io_)[a-z0-9_]+|specray:[a-z0-9_:]+)", expr))


class Prometheus:
    """A running server."""

    def __init__(self, url: str) -> None:
        self.url = url

    def query(self, expr: str) -> list[dict[str, Any]]:
        """The series that an expression yields now."""
        reply = httpx.get(f"{self.url}/api/v1/query", params={"query": expr}).json()
        assert reply["status"] == "success", f"{expr}: {reply}"
        return list(reply["data"]["result"])

    def without_data(self, queries: Sequence[Query]) -> list[Query]:
        """Those that yield nothing, or nothing but not-a-number."""

        def is_empty(query: Query) -> bool:
            return all(series["value"][1] == "NaN" for series in self.query(query.expr))

        return [query for query in queries if is_empty(query)]

    def value(self, expr: str) -> float | None:
        """What an expression yields now, if it is one number."""
        found = self.query(expr)
        return float(found[0]["value"][1]) if len(found) == 1 else None

    def firing(self) -> set[str]:
        """The names of the alerts that fire now."""
        reply = httpx.get(f"{self.url}/api/v1/alerts").json()
        return {a["labels"]["alertname"] for a in reply["data"]["alerts"] if a["state"] == "firing"}


@contextmanager
def prometheus(metrics_url: str, port: int, folder: Path) -> Iterator[Prometheus]:
    """A server that scrapes the endpoint every two seconds, with our rules; their `for` is 0 s.

    On a busy machine a page may take more than one.
    """
    impatient = groups()
    for group in impatient:
        group["interval"] = "1s"
        for rule in group["rules"]:
            rule.pop("for", None)
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": impatient}))
    address = metrics_url.removeprefix("http://").removesuffix("/metrics")
    job = {"job_name": "ray", "static_configs": [{"targets": [address]}]}
    config = {
        "global": {"scrape_interval": "2s", "scrape_timeout": "2s"},
        "rule_files": [str(folder / "rules.yaml")],
        "scrape_configs": [job],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    command = [
        program("prometheus"),
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield _when_ready(process, Prometheus(f"http://127.0.0.1:{port}"), folder)
    finally:
        process.terminate()
        process.wait(20.0)


def _when_ready(process: subprocess.Popen[bytes], server: Prometheus, folder: Path) -> Prometheus:
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(f"{server.url}/-/ready").status_code == httpx.codes.OK:
                return server
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise AssertionError((folder / "prometheus.log").read_text())
