"""The rules by promtool itself: they parse, fire when they should, and not otherwise."""

import re
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from tests import prometheus
from tests.k8s.rendering import ROOT
from tests.prometheus import RULES, alerts, groups, metrics_in, recordings

Series = dict[str, str]

RUNBOOK = (ROOT / "docs" / "runbook.md").read_text()
SERVE = 'application="specray"'


class Case(NamedTuple):
    """What makes an alert fire, and what looks much like it and does not."""

    trouble: Series
    quiet: Series
    after: str = "10m"


def healthy(value: str) -> Series:
    name = "ray_serve_deployment_replica_healthy"
    return {f'{name}{{{SERVE},deployment="router",replica="{r}"}}': value for r in "ab"}


def drafts(*values: str) -> Series:
    name = "ray_specray_connected_replicas"
    return {f'{name}{{role="draft",replica="{i}"}}': value for i, value in enumerate(values)}


def http(**rates: str) -> Series:
    """Requests by status; values by `s500` and the like."""
    name = "ray_serve_num_http_requests_total"
    return {
        f'{name}{{{SERVE},route="/v1",status_code="{status[1:]}"}}': values
        for status, values in rates.items()
    }


def pair(first: str, one: str, second: str, other: str) -> Series:
    return {first: one, second: other}


def working(replica: str = "d", busy: str = "", sessions: str = "1x60") -> Series:
    labels = f'method="model",replica="{replica}"'
    spent = "ray_specray_draft_busy_seconds_total"
    return {
        f'{spent}{{{labels},work="answers"}}': busy,
        f'{spent}{{{labels},work="ahead"}}': "0+30x60",  # half of the time, which is no fault
        f"ray_specray_draft_sessions{{{labels}}}": sessions,
    }


ACCEPTED = 'ray_specray_accepted_tokens_total{source="model"}'
PROPOSED = 'ray_specray_proposed_tokens_total{source="model"}'
WAITED_FOR = 'ray_specray_buffer_lookups_total{result="late"}'  # most of them in time
MISSED = 'ray_specray_proposals_total{outcome="missed"}'
STATUS = f'ray_serve_deployment_status{{{SERVE},deployment="target:m"}}'
QUEUED = f'ray_serve_deployment_queued_queries{{{SERVE},deployment="target:m"}}'
KV = 'ray_vllm_kv_cache_usage_perc{model_name="m",ReplicaId="r"}'
WAITING = 'ray_vllm_num_requests_waiting{model_name="m",ReplicaId="r"}'
REFUSED = f'ray_specray_user_config_refused{{{SERVE},deployment="controller"}}'
HOMELESS = "ray_specray_sessions_without_draft"
FALLBACKS = 'ray_specray_fallbacks_total{reason="draft_died"}'

CASES: dict[str, Case] = {
    "SpecrayNoHealthyReplica": Case(healthy("0x60"), healthy("1x60")),
    "SpecrayErrors": Case(
        http(s200="0+54x60", s500="0+6x60"), http(s200="0+30x60", s400="0+30x60", s500="0+1x60")
    ),
    "SpecrayNoMetrics": Case({"up": "1x60"}, drafts("0x60")),
    "SpecrayQueueGrows": Case(
        {QUEUED: "0x60", WAITING: "101x60"}, {QUEUED: "100x60", WAITING: "100x60"}
    ),
    "SpecrayUserConfigRefused": Case({REFUSED: "1x60"}, {REFUSED: "0x60"}),
    "SpecrayKvCacheFull": Case({KV: "0.96x60"}, {KV: "0.95x60"}, "15m"),
    "SpecrayNoDraft": Case(drafts("2x60", "0x60"), drafts("2x60", "1x60")),
    "SpecrayDraftMissing": Case(drafts("2x4 1x60"), drafts("2x4 1x2 2x60")),
    "SpecraySessionsWithoutDraft": Case({HOMELESS: "1x60"}, {HOMELESS: "0x60"}),
    "SpecrayFallbacks": Case({FALLBACKS: "0+40x60"}, {FALLBACKS: "0+20x60"}, "20m"),
    "SpecrayDraftsBusy": Case(
        {**working(busy="0+57x60"), **working("dead", "0x60", "1 _x60")},
        working(busy="0+48x60"),
        "30m",
    ),
    "SpecrayLowAcceptance": Case(
        pair(ACCEPTED, "0+2x90", PROPOSED, "0+10x90"),
        pair(ACCEPTED, "0+4x90", PROPOSED, "0+10x90"),
        "60m",
    ),
    "SpecrayLateProposals": Case(
        pair(WAITED_FOR, "0+10x90", MISSED, "0+6x90"),
        pair(WAITED_FOR, "0+10x90", MISSED, "0+4x90"),
        "60m",
    ),
}


def unit_test(
    alert: str, series: Series, after: str, is_firing: bool, interval: str = "1m"
) -> dict[str, object]:
    firing = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})'
    expected = [{"labels": "{}", "value": 1}] if is_firing else []
    return {
        "interval": interval,
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [{"expr": firing, "eval_time": after, "exp_samples": expected}],
    }


def assert_passes(tests: list[dict[str, object]], folder: Path) -> None:
    file = folder / "test.yaml"
    content = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "group_eval_order": [group["name"] for group in groups()],  # else it is random
        "tests": tests,
    }
    file.write_text(yaml.safe_dump(content))
    done = prometheus.promtool("test", "rules", str(file))
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_takes_the_rules() -> None:
    done = prometheus.promtool("check", "rules", str(RULES))
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_fires_in_trouble_and_only_then(tmp_path: Path) -> None:
    assert CASES.keys() == alerts().keys()
    tests = []
    for alert, (trouble, quiet, after) in CASES.items():
        tests.append(unit_test(alert, trouble, after, is_firing=True))
        tests.append(unit_test(alert, trouble, "0m", is_firing=False))
        tests.append(unit_test(alert, quiet, after, is_firing=False))
    assert_passes(tests, tmp_path)


def test_series_that_are_not_there_are_told_from_zeros(tmp_path: Path) -> None:
    gone = drafts("2x4 1x20")  # after ten minutes it is the new normal
    assert_passes(
        [
            unit_test("SpecrayNoHealthyReplica", {STATUS: "1x60"}, "20m", is_firing=True),
            unit_test("SpecrayErrors", http(s200="0+9x60"), "20m", is_firing=False),
            unit_test("SpecrayDraftMissing", gone, "20m", is_firing=False),
        ],
        tmp_path,
    )


def in_namespace(namespace: str, series: Series) -> Series:
    return {
        name.replace("{", f'{{namespace="{namespace}",', 1): values
        for name, values in series.items()
    }


def with_application(series: Series) -> Series:
    return {name.replace("{", f"{{{SERVE},", 1): values for name, values in series.items()}


def test_a_healthy_installation_does_not_hide_another(tmp_path: Path) -> None:
    reporting = with_application(drafts("1x60"))
    assert_passes(
        [
            unit_test(
                alert,
                {**in_namespace("prod", trouble), **in_namespace("b", good)},
                CASES[alert].after,
                is_firing=True,
            )
            for alert, trouble, good in (
                ("SpecrayNoHealthyReplica", healthy("0x60"), healthy("1x60")),
                ("SpecrayErrors", CASES["SpecrayErrors"].trouble, http(s200="0+6000x60")),
                ("SpecrayNoMetrics", {STATUS: "1x60"}, {STATUS: "1x60"} | reporting),
                (
                    "SpecrayLateProposals",
                    CASES["SpecrayLateProposals"].trouble,
                    pair(WAITED_FOR, "0+601x90", MISSED, "0+1x90"),
                ),
            )
        ],
        tmp_path,
    )


def test_a_cluster_that_follows_another_is_not_one_that_lost_drafts(tmp_path: Path) -> None:
    name = "ray_specray_connected_replicas"
    clusters = {
        f'{name}{{role="draft",ray_io_cluster="old",replica="a"}}': "2x60",
        f'{name}{{role="draft",ray_io_cluster="new",replica="b"}}': "_x3 0x4 1x60",
    }
    assert_passes([unit_test("SpecrayDraftMissing", clusters, "10m", is_firing=False)], tmp_path)


def test_a_gauge_that_skips_a_scrape_keeps_its_alert(tmp_path: Path) -> None:
    skipping = drafts("stale 0 0 0 " * 40)  # missing whenever the rules are evaluated
    missing = drafts("2x20 " + "stale 1 1 1 " * 40)
    assert_passes(
        [
            unit_test("SpecrayNoDraft", skipping, "10m", is_firing=True, interval="15s"),
            unit_test("SpecrayDraftMissing", missing, "12m", is_firing=True, interval="15s"),
        ],
        tmp_path,
    )


@pytest.mark.parametrize("alert", alerts())
def test_an_alert_has_a_section_in_the_runbook(alert: str) -> None:
    anchor = f"docs/runbook.md#{alert.lower()}"
    assert alerts()[alert]["annotations"]["runbook_url"] == anchor
    section = re.search(rf"^## {alert}\n(.+?)(?=^## |\Z)", RUNBOOK, re.DOTALL | re.MULTILINE)
    assert section
    for part in ("Symptom", "Metric", "Cause", "Action"):
        assert f"**{part}.**" in section[1]


def test_the_runbook_has_no_other_sections() -> None:
    assert set(re.findall(r"^## (\w+)$", RUNBOOK, re.MULTILINE)) == set(alerts())


def test_alerts_read_recordings_that_exist() -> None:
    read = {m for rule in alerts().values() for m in metrics_in(rule["expr"]) if m[0] == "s"}
    assert read <= recordings().keys()
