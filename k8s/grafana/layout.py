"""Lays panels.yaml out as a Grafana dashboard."""

import json
import re
from collections.abc import Iterator
from typing import Any

_WIDTH, _HEIGHT, _PER_LINE = 8, 8, 3  # of the 24 columns
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_QUANTILES = (0.5, 0.95, 0.99)
_CHOSEN = re.compile(r'(application=~"\$app"|model_name=~"\$model")')


def dashboard(rows: list[dict[str, Any]]) -> str:
    """The JSON of a dashboard that Grafana 10 and newer import."""
    panels = list(_panels(rows))
    for number, panel in enumerate(panels, 1):
        panel["id"] = number
    content = {
        "uid": "specray",
        "title": "specray",
        "description": "Disaggregated speculative decoding: traffic, acceptance, depth, drafts.",
        "tags": ["specray", "ray", "vllm"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": panels,
    }
    return json.dumps(content, indent=1) + "\n"


def queries(panel: dict[str, Any]) -> list[dict[str, str]]:
    """What a panel of panels.yaml asks for."""
    if "quantiles" not in panel:
        return list(panel["queries"])
    metric, chosen = panel["quantiles"], panel["of"]
    buckets = f"sum by (le) (rate({metric}_bucket{{{chosen}}}[$__rate_interval]))"
    return [
        {"legend": f"p{q * 100:.0f}", "expr": f"histogram_quantile({q}, {buckets})"}
        for q in _QUANTILES
    ]


def _panels(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    top = 0
    for row in rows:
        place = {"x": 0, "y": top, "w": 24, "h": 1}
        yield {"type": "row", "title": row["title"], "collapsed": False, "gridPos": place}
        top += 1
        for number, panel in enumerate(row["panels"]):
            line, column = divmod(number, _PER_LINE)
            yield _panel(panel, column * _WIDTH, top + line * _HEIGHT)
        top += -(-len(row["panels"]) // _PER_LINE) * _HEIGHT


def _panel(panel: dict[str, Any], x: int, y: int) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": panel["title"],
        "description": panel["description"],
        "datasource": _SOURCE,
        "gridPos": {"x": x, "y": y, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel["unit"], "min": 0}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": _SOURCE,
                "expr": _CHOSEN.sub(r'namespace=~"$namespace",\1', query["expr"]),
                "legendFormat": query["legend"],
                "range": True,
            }
            for number, query in enumerate(queries(panel))
        ],
    }


def _variables() -> list[dict[str, Any]]:
    source = {"name": "datasource", "label": "Prometheus", "type": "datasource"}
    return [
        source | {"query": "prometheus", "current": {}},
        _variable("namespace", "Namespace", "ray_specray_connected_replicas, namespace"),
        _variable("app", "Application", "ray_specray_connected_replicas, application"),
        _variable("model", "Model", "ray_vllm_generation_tokens_total, model_name"),
    ]


def _variable(name: str, label: str, values_of: str) -> dict[str, Any]:
    query = f"label_values({values_of})"
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }
