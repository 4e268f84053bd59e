"""The curves in the page of the benchmarks, and their image."""

from pathlib import Path

from sbus.bench.curve_report import PAGE, SECTION, image, median_trip, update
from sbus.bench.report import Result, marks

BEGIN, END = marks(SECTION)


def result() -> Result:
    return Result(
        name="curves",
        settings={"seconds": 1, "repetitions": 1, "step": "python"},
        columns=("case", "µs/msg"),
        rows=[("size 16, saturated", "1.50"), ("size 4,096, saturated", "3.50")],
        notes=["a note"],
    )


def test_the_report_replaces_what_stands_between_its_marks(tmp_path: Path) -> None:
    page = tmp_path / PAGE
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    update(tmp_path, result())
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}\n")
    assert text.endswith(f"{END}\nafter\n")
    assert "old" not in text
    assert "a note" in text


def test_a_line_goes_through_its_points() -> None:
    (line,) = (line for line in image(result()) if line.startswith("<polyline"))
    assert line.count(",") == 2


def test_only_round_trips_have_a_time() -> None:
    assert median_trip([9_000, 11_000, 10_000]) == "10.0"
    assert median_trip([None, None]) == ""
