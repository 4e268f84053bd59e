"""The Grafana dashboard uses existing metrics, and describes what it shows."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sbus.cli.metrics.families import FAMILIES

DASHBOARD = Path(__file__).resolve().parents[2] / "deploy/grafana/sbus.json"
SUFFIXES = {"histogram": ("_bucket", "_count", "_sum")}


def dashboard() -> Any:
    return json.loads(DASHBOARD.read_text())


def values(tree: Any, name: str) -> Iterator[str]:
    """Every text that has this name, anywhere in the tree."""
    if isinstance(tree, dict):
        found = tree.get(name)
        if isinstance(found, str):
            yield found
        for branch in tree.values():
            yield from values(branch, name)
    elif isinstance(tree, list):
        for branch in tree:
            yield from values(branch, name)


def test_every_metric_of_an_expression_exists() -> None:
    there = {
        f"{family.name}{suffix}"
        for family in FAMILIES
        for suffix in SUFFIXES.get(family.kind, ("",))
    }
    labels = {label for family in FAMILIES for label in family.labels} | {"le", "instance"}
    expressions = list(values(dashboard(), "expr"))
    assert len(expressions) > 30
    for expression in expressions:
        asked = set(re.findall(r"\bsbus_\w+", expression))
        assert asked
        assert asked <= there, expression
        for by in re.findall(r"\bby \(([^)]*)\)", expression):
            assert set(by.split(", ")) <= labels, expression
        assert expression.count("(") == expression.count(")")


def test_only_counters_are_shown_as_rates() -> None:
    counters = {family.name for family in FAMILIES if family.kind == "counter"}
    for expression in values(dashboard(), "expr"):
        for function, metric in re.findall(r"(\w*)\(?\b(sbus_\w+)", expression):
            counts = metric in counters or metric.endswith("_bucket")
            assert (function in ("rate", "increase")) == counts, expression


def test_every_panel_says_what_it_shows() -> None:
    panels = dashboard()["panels"]
    shown = [panel for panel in panels if panel["type"] != "row"]
    assert {"timeseries", "heatmap", "stat"} <= {panel["type"] for panel in shown}
    for panel in shown:
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["targets"], panel["title"]
    assert len({panel["title"] for panel in shown}) == len(shown)
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_panels_stand_beside_each_other() -> None:
    """Grafana has 24 columns; two panels share no cell of the grid."""
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells
