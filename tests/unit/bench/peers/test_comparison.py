"""Medians by work and peer, tables within a terminal, and peers that are missing or fail."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbus.bench import BenchmarkFailed
from sbus.bench.load import SBUS_BYTES, LoadSample
from sbus.bench.peers.brokers import PEERS, NotInstalled, Peer
from sbus.bench.peers.comparison import (
    WORKS,
    cells,
    compare,
    comparison_table,
    explanation,
    figures,
    rate_table,
)
from sbus.bench.report import table
from sbus.bench.servers import RunSettings, Server


def sample(
    cpu_us: float, received: int = 1_000, lost: int = 0, late: int = 0, p50_ns: int = 5_000
) -> LoadSample:
    cpu_ns = round(cpu_us * 1_000 * received)
    return LoadSample(
        published=1_000,
        late=late,
        received=received,
        lost=lost,
        wall_ns=100_000_000,
        cpu_ns=cpu_ns,
        p50_ns=p50_ns,
        p99_ns=p50_ns,
        context_switches=0,
    )


def samples_of(**costs: float) -> dict[str, dict[str, list[LoadSample]]]:
    """Every work alike; a name's `_` stands for `-`."""
    by_peer = {name.replace("_", "-"): [sample(cost)] * 3 for name, cost in costs.items()}
    return {work: dict(by_peer) for work in WORKS}


def test_a_cost_counts_only_what_arrived() -> None:
    one = sample(4.0, received=500, lost=1_500)
    assert one.cpu_us == pytest.approx(4.0)
    assert one.lost_percent == pytest.approx(75.0)
    assert one.received_per_second == pytest.approx(5_000)


def test_figures_are_medians() -> None:
    samples = samples_of(redis=1.0)
    samples["lock step"]["redis"] = [sample(c, p50_ns=n) for c, n in ((1, 9), (7, 1), (3, 4))]
    found = figures(samples)
    assert found["p50"]["redis"] == pytest.approx(0.004)
    assert found["lock step"]["redis"] == pytest.approx(3.0)
    assert found["to 50"]["redis"] == pytest.approx(1.0)
    assert list(found) == ["p50", *WORKS]


def test_a_peer_without_figures_keeps_its_row() -> None:
    assert set(cells(figures(samples_of(redis=1.0)), "nats")) == {"-"}


def test_losses_are_told_of_each_work() -> None:
    samples = samples_of(sbus_8=1.0, redis=1.0)
    assert rate_table(samples, PEERS)[-1] == "Nothing was lost."
    samples["saturated"]["sbus-8"] = [sample(1.0, lost=3_000)] * 3
    (line,) = [line for line in rate_table(samples, PEERS) if "lost" in line]
    assert line.startswith("sbus-8 lost 75.0 % of one to one, saturated")


def test_a_load_that_was_late_is_told() -> None:
    samples = samples_of(redis=1.0, nats=1.0)
    samples["paced"]["nats"] = [sample(1.0, late=late) for late in (0, 300, 900)]
    (line,) = [line for line in rate_table(samples, PEERS) if "late" in line]
    assert line.startswith("paced: up to 30 %")


def test_sbus_is_compared_with_the_best_broker_and_not_with_a_relay() -> None:
    found = figures(samples_of(relay=0.5, sbus_1=4.0, redis=2.0, nats=3.0))
    row = next(line for line in comparison_table(found, PEERS) if line.startswith("to 50"))
    assert row.split() == ["to", "50", "redis", "2.00", "2.00", "x", "-"]


def test_the_tables_fit_a_terminal() -> None:
    costs = dict.fromkeys((name.replace("-", "_") for name in PEERS), 49.99)
    samples = samples_of(**costs)
    samples["to 50"]["sbus-8"] = [sample(1.0, lost=3_000)]
    samples["paced"]["sbus-8"] = [sample(1.0, late=900)]
    found = figures(samples)
    lines = [
        *table(("µs", *found), [(name, *cells(found, name)) for name in PEERS]),
        *explanation(),
        *rate_table(samples, PEERS),
        *comparison_table(found, PEERS),
    ]
    assert max(map(len, lines)) <= 80


def peer_that(error: BenchmarkFailed) -> Peer:
    @contextlib.contextmanager
    def start(_run: RunSettings) -> Iterator[Server]:
        raise error
        yield

    return Peer(protocol="sbus", start=start)


@pytest.mark.parametrize(
    ("error", "succeeded"),
    [(NotInstalled("x is not installed"), True), (BenchmarkFailed("it ended"), False)],
)
def test_a_peer_that_cannot_be_measured_is_named(
    error: BenchmarkFailed, succeeded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunSettings(directory=Path("/nowhere"), repetitions=2)
    result = compare(run, {"other": peer_that(error)}, 110, 1.0)
    assert result.rows == [("other", *"-------")]
    assert f"other: {error}" in result.notes
    assert result.succeeded is succeeded


def test_the_payload_makes_packets_of_the_size_asked_for() -> None:
    assert SBUS_BYTES == 16
