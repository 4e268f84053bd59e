"""The curves as an image, and the times of round trips."""

from sbus.bench.curve_report import median_trip, panels
from sbus.bench.report import Result


def result() -> Result:
    return Result(
        name="curves",
        settings={"seconds": 1, "repetitions": 1, "step": "python"},
        columns=("case", "µs/msg"),
        rows=[("size 16, saturated", "1.50"), ("size 4,096, saturated", "3.50")],
        notes=["a note"],
    )


def test_a_line_goes_through_its_points() -> None:
    (panel,) = panels(result())
    (line,) = (line for line in panel if line.startswith("<polyline"))
    assert line.count(",") == 2


def test_only_round_trips_have_a_time() -> None:
    assert median_trip([9_000, 11_000, 10_000]) == "10.0"
    assert median_trip([None, None]) == ""
