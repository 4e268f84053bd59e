"""The model of costs: fitted to samples whose costs are known, and what it predicts from them."""

from pathlib import Path

import pytest

from sbus.bench import BenchmarkFailed
from sbus.bench.cost_model import TERMS, fit, fit_model, prediction, term_counts
from sbus.bench.curve_report import PAGE, SECTION, image, update
from sbus.bench.curves import CURVES, FAN_OUT, Bus, Case, Changes
from sbus.bench.load import LoadSample
from sbus.bench.report import Result, marks

BEGIN, END = marks(SECTION)

COSTS_US = {
    "message": 0.8,
    "delivery": 0.9,
    "kB": 0.2,
    "warm kB": 0.05,
    "entry": 0.4,
    "walk": 9.0,
    "switch": 7.0,
    "wake-up": 30.0,
    "miss": 5.0,
    "change": 50.0,
}


def sample(
    received: int = 1_000, published: int = 1_000, switches: int = 0, changes: int = 0
) -> LoadSample:
    return LoadSample(
        published=published,
        received=received,
        lost=0,
        wall_ns=10**9,
        cpu_ns=0,
        context_switches=switches,
        changes=changes,
        p50_ns=None,
        p99_ns=None,
        late=0,
    )


def test_a_round_trip_counts_its_context_switches_as_those_of_a_busy_cpu() -> None:
    counts = term_counts(Bus(), "round trip", sample(switches=1_000))
    assert (counts["switch"], counts["wake-up"]) == (1.0, 0.0)
    assert counts["kB"] == 0
    assert counts["warm kB"] == pytest.approx(0.22)


def test_a_paced_message_wakes_an_idle_cpu() -> None:
    counts = term_counts(Bus(), "paced", sample(switches=2_000))
    assert (counts["switch"], counts["wake-up"]) == (0.0, 2.0)


def test_a_walk_for_one_message_has_a_cost_of_its_own() -> None:
    one, two = Bus(workers=1), Bus(workers=2)
    assert term_counts(two, "round trip", sample())["walk"] == 1
    assert term_counts(two, "paced", sample())["walk"] == 1
    assert term_counts(two, "saturated", sample())["walk"] == 0
    assert term_counts(one, "round trip", sample())["walk"] == 0


def test_a_fan_out_reads_once_and_walks_once_for_each_other_worker() -> None:
    those = sample(received=1_000 * FAN_OUT)
    counts = term_counts(Bus(workers=4), "fan-out", those)
    assert counts["message"] == 1 / FAN_OUT
    assert counts["delivery"] == 1
    assert counts["entry"] == 3 / FAN_OUT
    assert term_counts(Bus(workers=64), "fan-out", those)["entry"] == 1


def test_only_a_wildcard_change_makes_the_key_in_use_a_miss() -> None:
    literal, wildcard = (
        term_counts(Bus(changes=Changes(10, pattern)), "paced", sample(changes=100))
        for pattern in (b"bench/changed", b"bench/*/changed")
    )
    assert (literal["change"], literal["miss"]) == (0.1, 0.0)
    assert (wildcard["change"], wildcard["miss"]) == (0.1, 0.1)
    assert term_counts(Bus(route_cache=False), "saturated", sample())["miss"] == 1.0


def known_samples() -> dict[Case, list[LoadSample]]:
    """One of each case, with the CPU time that follows from COSTS_US."""
    samples = {}
    for name, curve in CURVES.items():
        for value in curve.values:
            for work in curve.works:
                published = 1_000 // (FAN_OUT if work == "fan-out" else 1)
                switches = {"round trip": 1_000 + 100 * value % 7, "paced": 900}.get(work, 0)
                changes = value if name.endswith("changes") else 0
                one = sample(1_000, published, switches, changes)
                counts = term_counts(curve.bus(value), work, one)
                cost_us = sum(COSTS_US[term] * counts[term] for term in TERMS)
                cpu_ns = round(cost_us * one.received * 1_000)
                done = {"p50_ns": 9_000 if work == "round trip" else None, "cpu_ns": cpu_ns}
                samples[name, value, work] = [LoadSample(**{**vars(one), **done})]
    return samples


def test_the_fit_finds_the_costs_that_the_samples_have() -> None:
    samples = known_samples()
    model = fit_model(samples)
    assert model.costs_us == pytest.approx(COSTS_US, rel=0.02)
    for case, (only,) in samples.items():
        assert model.cases_us[case] == pytest.approx(only.cpu_us, rel=0.01)


def test_no_cost_is_negative() -> None:
    counts = dict.fromkeys(TERMS, 0.0)
    rows = [counts | {"message": 1.0}, counts | {"message": 1.0, "entry": 1.0}]
    costs_us = fit(rows, [2.0, 1.0])
    assert costs_us["entry"] == 0
    assert 1 < costs_us["message"] < 2


def test_a_prediction_names_what_limits() -> None:
    assert "0.50 M/s" in prediction("x", 4.0, 2.0)
    assert "(lock)" in prediction("x", 4.0, 2.0)
    assert "0.25 M/s" in prediction("x", 0.25, 2.0)
    assert "(workers)" in prediction("x", 0.25, 2.0)
    assert "lock inf" in prediction("x", 1.0, 0.0)


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


def test_a_page_without_marks_is_not_changed(tmp_path: Path) -> None:
    page = tmp_path / PAGE
    page.write_text(f"{END}\n")
    with pytest.raises(BenchmarkFailed, match="no place"):
        update(tmp_path, result())
    assert page.read_text() == f"{END}\n"


def test_a_line_goes_through_its_points() -> None:
    (line,) = (line for line in image(result()) if line.startswith("<polyline"))
    assert line.count(",") == 2
