"""The dashboard and the rules ask for what there is, in a language that Prometheus takes."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest
import yaml

from tests import prometheus
from tests.k8s.rendering import ROOT
from tests.prometheus import DASHBOARD, Query, metrics_in, rule_queries

PANELS = json.loads(DASHBOARD.read_text())["panels"]
QUERIES = [*prometheus.dashboard_queries(), *rule_queries()]
OURS = set(re.findall(r'"(specray_[a-z_]+)"', (ROOT / "specray/serve/metrics.py").read_text()))
RECORDED = set((Path(__file__).parent / "scraped_metrics.txt").read_text().split())
TABLE = (ROOT / "docs" / "metrics.md").read_text()


def test_every_panel_has_an_id_of_its_own_and_a_place_of_its_own() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    cells = Counter(
        (x, y)
        for place in (panel["gridPos"] for panel in PANELS)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    )
    assert max(cells.values()) == 1
    assert max(x for x, _ in cells) < 24


def test_every_panel_says_what_it_shows() -> None:
    for panel in PANELS:
        if panel["type"] != "row":
            assert panel["description"], panel["title"]
            assert panel["targets"], panel["title"]
            assert len({t["refId"] for t in panel["targets"]}) == len(panel["targets"])


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.place)
def test_a_query_asks_for_metrics_that_exist(query: Query) -> None:
    for metric in metrics_in(query.expr):
        name = re.sub(r"_(total|bucket)$", "", metric.removeprefix("ray_"))
        if metric.startswith("ray_specray_"):
            assert name in OURS, metric
        elif metric.startswith("ray_"):
            assert metric in RECORDED, metric


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.place)
def test_a_rate_is_taken_of_counters_only(query: Query) -> None:
    for metric in re.findall(r"rate\((\w+)", query.expr):
        assert metric.endswith(("_total", "_bucket"))


def test_prometheus_takes_every_query(tmp_path: Path) -> None:
    rules = [{"record": f"q:{i}", "expr": query.expr} for i, query in enumerate(QUERIES)]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    done = prometheus.promtool("check", "rules", str(file))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", sorted(OURS))
def test_the_readme_describes_each_metric(name: str) -> None:
    assert f"`{name}`" in TABLE
