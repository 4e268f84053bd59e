"""How far a query is behind: against the recording as it is now."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from sbus.pipeline.spark import lag
from sbus.pipeline.spark.lag import Lag, LagListener, lag_of
from sbus.pipeline.spark.planning import Offsets
from sbus.pipeline.store.reader import Recording, Tables
from tests.support.small_recording import FIRST_US, STEP_US, SmallRecorder, numbered

NOW = FIRST_US / 1e6 + 1


def progress(offsets: str, name: str | None = None) -> Any:
    """Of a query that also reads other sources, one of which has had no data yet."""
    found = ("7", '{"topic": {"0": 3}}', "None", offsets)
    sources = [SimpleNamespace(endOffset=text) for text in found]
    return SimpleNamespace(progress=SimpleNamespace(name=name, id="a1", sources=sources))


def end(exception: str | None) -> Any:
    return SimpleNamespace(id="a1", exception=exception)


def test_progress_of_one_query_does_not_measure_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = LagListener(str(tmp_path))
    measured: list[Offsets] = []

    def note(found: Tables, offsets: Offsets, now: float) -> Lag:
        measured.append(offsets)
        return lag_of(found, offsets, now)

    monkeypatch.setattr(lag, "lag_of", note)
    with SmallRecorder(tmp_path) as alder:
        alder.record(numbered(10))
        for number in range(5):
            event = progress(f'{{"{alder.qualified_name}": {number}}}')
            event.progress.id = f"query {number}"
            listener.onQueryProgress(event)
    assert measured == [{alder.qualified_name: number} for number in range(5)]


def test_lag_is_the_rows_not_read_and_the_age_of_the_oldest(tmp_path: Path) -> None:
    with SmallRecorder(tmp_path) as alder, SmallRecorder(tmp_path, "birch") as birch:
        alder.record(numbered(10))
        alder.roll()
        alder.seal()
        alder.record(numbered(20, 10))
        birch.record(numbered(5))
        found = Recording(tmp_path).tables("messages")

    def lag_at(alder_offset: int, **others: int) -> Lag:
        offsets = {alder.qualified_name: alder_offset}
        if others:
            offsets[birch.qualified_name] = others["birch"]
        return lag_of(found, offsets, NOW)

    assert lag_at(30, birch=5) == Lag(0, 0.0)
    assert lag_at(0, birch=5) == Lag(30, 1.0), "sealed rows count, too"
    assert lag_at(30, birch=2).rows == 3
    assert lag_at(30) == Lag(5, 1.0), "a recorder that the query has not seen yet"
    assert lag_at(10, birch=5).rows == 20
    assert lag_at(10, birch=5).seconds == pytest.approx(1 - 10 * STEP_US / 1e6)


def test_a_listener_logs_lag_and_has_metrics_until_the_query_ends_well(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    listener = LagListener(str(tmp_path), now=lambda: NOW)
    registry = CollectorRegistry()
    with SmallRecorder(tmp_path) as alder:
        alder.record(numbered(10))
        registry.register(listener)
        assert listener.lags() == {}
        listener.onQueryProgress(progress(f'{{"{alder.qualified_name}": 7}}', "lamps"))
        assert "lamps is 3 rows and 1.0 s behind" in caplog.text
        alder.record(numbered(1, 10))
        age = NOW - (FIRST_US + 7 * STEP_US) / 1e6
        assert listener.lags()["lamps"].rows == 4
        assert listener.lags()["lamps"].seconds == pytest.approx(age)
        assert b'sbus_stream_lag_rows{query="lamps"} 4.0' in generate_latest(registry)
        listener.onQueryTerminated(end("it failed"))
        assert list(listener.lags()) == ["lamps"]
        listener.onQueryTerminated(end(None))
        assert listener.lags() == {}
        assert b"sbus_stream_lag_seconds{" not in generate_latest(registry)
