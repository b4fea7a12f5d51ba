"""The alerts ask for metrics that exist, by the names under which Prometheus sees them."""

import re
from pathlib import Path

import pytest
import ray.serve._private as serve_internals
import yaml

from tests.k8s.rendering import K8S, ROOT

GROUPS = yaml.safe_load((K8S / "components" / "monitoring" / "alerts.yaml").read_text())["spec"][
    "groups"
]
ALERTS = {rule["alert"]: rule for group in GROUPS for rule in group["rules"]}


def _counters_and_gauges(*files: Path) -> set[str]:
    """The names in the sources; Ray puts `ray_` in front, and `_total` behind a counter's."""
    text = "\n".join(file.read_text() for file in files)
    return set(re.findall(r'"((?:specray|serve)_[a-z_]+)"', text))


DEFINED = _counters_and_gauges(
    ROOT / "specray" / "serve" / "metrics.py",
    *Path(serve_internals.__file__).parent.glob("*.py"),
)


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_asks_for_metrics_that_exist(name: str) -> None:
    asked = re.findall(r"\bray_([a-z_]+)", ALERTS[name]["expr"])
    assert asked
    assert {metric.removesuffix("_total") for metric in asked} <= DEFINED


@pytest.mark.parametrize("name", ALERTS)
def test_a_rate_is_taken_of_counters_only(name: str) -> None:
    for metric in re.findall(r"rate\((\w+)", ALERTS[name]["expr"]):
        assert metric.endswith("_total")
