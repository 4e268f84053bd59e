"""The comparison in the page of the benchmarks, and its image."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from sbus.bench.peers.comparison import WORKS
from sbus.bench.peers.documents import SECTION, update
from sbus.bench.proc import Machine
from sbus.bench.report import Result, marks

BEGIN, END = marks(SECTION)

SVG = "{http://www.w3.org/2000/svg}"


def result() -> Result:
    return Result(
        name="peers",
        machine=Machine("CPU", 2, "6.1", "3.11.7", 0.0),
        settings={"size": 110},
        columns=("µs", "p50", "to 50"),
        rows=[("sbus-1", "9.00", "2.00"), ("redis", "3.00", "-")],
        notes=["Nothing was lost."],
        samples={
            "figures": {"p50": {"sbus-1": 9.0, "redis": 3.0}, "to 50": {"sbus-1": 2.0}},
            "works": WORKS,
            "versions": {"sbus-1": "", "redis": "7.0"},
        },
    )


def test_the_page_names_versions(tmp_path: Path) -> None:
    page = tmp_path / "benchmarks.md"
    page.write_text(f"{BEGIN}\n{END}")
    update(tmp_path, result())
    assert "\nVersions: redis 7.0.\n" in page.read_text()


def test_bars_are_as_long_as_the_figures(tmp_path: Path) -> None:
    (tmp_path / "benchmarks.md").write_text(f"{BEGIN}\n{END}")
    update(tmp_path, result())
    image = ElementTree.parse(tmp_path / "peers.svg").getroot()
    bars = [
        [bar.get("width") for bar in panel.iter(f"{SVG}rect")] for panel in image.iter(f"{SVG}g")
    ]
    (first, second), (alone,) = bars
    assert first is not None
    assert second is not None
    assert alone == first
    assert float(first) == pytest.approx(3 * float(second), rel=0.01)


def test_the_page_has_a_place_for_the_comparison() -> None:
    page = Path(__file__).parents[4] / "docs/benchmarks.md"
    assert page.read_text().count(f"\n{BEGIN}\n") == 1
    assert page.read_text().count(f"\n{END}\n") == 1
