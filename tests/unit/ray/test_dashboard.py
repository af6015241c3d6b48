"""deploy/grafana.json asks for what /metrics has."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.aside import Aside

pytest.importorskip("ray", reason="Ray has no wheel for this platform")
METRICS = """
from radixlm.core.clock import VirtualClock
from radixlm.engine import EngineStats
from radixlm.ray.router_routes import replica_metrics
from radixlm.routing import ReplicaStatus, Why
from radixlm.server.insight.metrics import Metrics, RequestTimes
stats = EngineStats()
replicas = [ReplicaStatus("a", 0.1, 1, 20.0, dict.fromkeys(Why, 1), stats, "", 9)]
metrics = Metrics(
    lambda: stats, "name", VirtualClock(), families=lambda: replica_metrics(replicas)
)
times = RequestTimes(metrics)
times.take(1)
times.end()
print(metrics.render().decode())
"""
ROOT = Path(__file__).parents[3]
DASHBOARD = json.loads((ROOT / "deploy/grafana.json").read_text())
NAME_IN_QUERY = re.compile(r"radixlm:\w+")
LABELS_IN_QUERY = re.compile(r"by \(([\w, ]+)\)")
LABELS_IN_LEGEND = re.compile(r"{{(\w+)}}")


def exported(aside: Aside) -> dict[str, set[str]]:
    """Samples' names in /metrics of a deployment, with their labels."""
    text = aside.run(METRICS)
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


@pytest.mark.slow  # Ray is started
def test_every_metric_and_label_is_exported(aside: Aside):
    found = exported(aside)
    asked = set()
    for panel in panels():
        for target in panel["targets"]:
            names = NAME_IN_QUERY.findall(target["expr"])
            assert names, target
            assert found.keys() >= set(names), panel["title"]
            asked |= set(names)
            labels = {
                label.strip()
                for labels in LABELS_IN_QUERY.findall(target["expr"])
                for label in labels.split(",")
            }
            assert labels <= found[names[0]], panel["title"]
            assert set(LABELS_IN_LEGEND.findall(target["legendFormat"])) <= labels
    assert {name for name in found if ":replica_" in name or ":router_" in name} - asked <= {
        "radixlm:router_replica_requests"
    }


def test_panels_do_not_overlap_and_have_names_of_their_own():
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    cells = [
        (x, y)
        for at in places
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24
    for field in ("id", "title"):
        values = [panel[field] for panel in DASHBOARD["panels"]]
        assert len(set(values)) == len(values)
