"""The chart's values: each is described, and Helm refuses those that make no sense."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.k8s.rendering import CHART, helm

VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
_POOL = "pools.<pool>"


def _paths(node: Any, prefix: str = "") -> Iterator[str]:
    """Of each value as the table names it: pools as one, what is passed through as a whole."""
    for key, value in node.items():
        path = f"{prefix}{key}"
        if prefix == "pools.":
            path = _POOL
        is_passed_through = key in ("resources", "rayResources", "nodeSelector", "labels") or (
            path
            in (
                "streamTokenSecret",
                "weights.tokenSecret",
                "redis.passwordSecret",
                "weights.bucket.attributes",
            )
        )
        if isinstance(value, dict) and value and not is_passed_through:
            yield from _paths(value, f"{path}.")
        else:
            yield path


def test_the_table_describes_each_value_and_no_other() -> None:
    table = re.findall(r"^\| `([^`]+)` \|", (CHART / "README.md").read_text(), re.MULTILINE)
    assert sorted(set(table)) == sorted(table)
    assert set(table) == set(_paths(VALUES))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("upgrade.type=RollingUpdate", "upgrade.type"),
        ("pools.draft.minReplica=2", "minReplica"),
        ("pools.target.maxReplicas=-1", "maxReplicas"),
        ("pools.target.rayResources.GPU=4", "GPU"),
        ("pools.drafts.maxReplicas=1", "drafts"),
        ("redis.address=redis.infra", "redis.address"),
        ("weights.source=pvc", "weights.source"),
        ("serve.preset=70B", "the chart has no serve/70B.yaml"),
        ("image.repository=", "repository"),
    ],
)
def test_helm_refuses_a_faulty_value_and_names_it(setting: str, message: str) -> None:
    with pytest.raises(RuntimeError, match=re.escape(message).replace(r"\.", r"[./]")):
        helm("--set", setting)


def test_alerts_link_to_the_runbook_that_the_values_name() -> None:
    url = "https://wiki.example.com/specray"
    rules = next(
        m for m in helm("--set", f"monitoring.runbook={url}") if "groups" in m.get("spec", {})
    )
    links = [
        rule["annotations"]["runbook_url"]
        for group in rules["spec"]["groups"]
        for rule in group["rules"]
        if "alert" in rule
    ]
    assert links
    assert all(link.startswith(f"{url}#specray") for link in links)
