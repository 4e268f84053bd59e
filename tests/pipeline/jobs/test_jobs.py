"""Jobs on a recording of a busy hour, compared with results computed row by row.

The jobs that need only a few messages are compared in test_edge_cases.
"""

import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet
import pytest
from pyspark.sql import DataFrame, SparkSession

from sbus.pipeline.jobs.anomalies import WINDOWS_MIN, anomalies
from sbus.pipeline.jobs.clients import slow_consumers, users
from sbus.pipeline.jobs.flows import receivers, senders
from sbus.pipeline.jobs.incidents import SCORE_MIN
from sbus.pipeline.jobs.latency import broker_latency, latency
from tests.pipeline.jobs import oracles
from tests.pipeline.jobs.oracles import Message
from tests.support.job_results import answer, keyed
from tests.support.recordings import BOUNDS_US, Tables, generate

MINUTE_US = 60_000_000
MESSAGES = 100_000


class Recorded(NamedTuple):
    tables: Tables
    rows: list[Message]
    messages: DataFrame
    clients: DataFrame
    events: DataFrame


@pytest.fixture(scope="module")
def recorded(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    tables = generate(MESSAGES, seed=5)
    folder = tmp_path_factory.mktemp("recorded")
    frames = [
        as_frame(spark, getattr(tables, name), folder / f"{name}.parquet")
        for name in ("messages", "clients", "events")
    ]
    rows = oracles.rows(tables.messages)
    assert len(oracles.said(rows)) >= MESSAGES
    return Recorded(tables, rows, *frames)


def as_frame(spark: SparkSession, table: pa.Table, path: Path) -> DataFrame:
    pyarrow.parquet.write_table(table, path, row_group_size=250_000)
    return spark.read.parquet(str(path))


def test_latency_of_probes(recorded: Recorded) -> None:
    expected = oracles.latency(recorded.tables.messages, MINUTE_US)
    found = answer(
        latency(recorded.messages, window_seconds=60),
        *("recorder", "start", "probes", "unusable", "p50_ms", "p95_ms", "p99_ms", "max_ms"),
    )
    assert keyed(found, 2) == {
        key: (
            probes,
            bad,
            *(pytest.approx(oracles.percentile(took, p)) for p in (0.5, 0.95, 0.99, 1.0)),
        )
        for key, (probes, bad, took) in expected.items()
    }
    assert sum(row[2] for row in found) == 2 * 3_600


def test_latency_in_the_broker(recorded: Recorded) -> None:
    """In the generated recording all counts but the last grow steadily."""
    found = answer(broker_latency(recorded.events), "recorder", "bound_us", "deliveries")
    growth = [3_600 * share for share in (40, 300, 220, 90, 30, 12, 6, 3, 1, 0)]
    bounds: list[int | None] = [*BOUNDS_US, None]
    expected = dict(zip(bounds, [*growth, 3_600 * 4], strict=True))
    recorders = {row[0] for row in found}
    assert len(recorders) == 2
    for recorder in recorders:
        assert {bound: count for who, bound, count in found if who == recorder} == expected


def test_anomalies(recorded: Recorded) -> None:
    expected = oracles.anomalies(recorded.rows, 2, MINUTE_US, SCORE_MIN, WINDOWS_MIN)
    found = answer(
        anomalies(recorded.messages, depth=2, window_seconds=60),
        *("host", "prefix", "start", "end", "messages", "score", "why"),
    )
    assert {row[:4]: row[4:6] for row in found} == {
        key: (count, pytest.approx(score)) for key, (count, score) in expected.items()
    }
    kinds = Counter((prefix, score > 0) for _, prefix, _, _, _, score, _ in found)
    assert kinds["market/quote", True] == kinds["logs/db", False] == 2, "one for each host"
    sentence = r"silent for \d+ s; usually [\d,]+ messages in that time|"
    sentence += r"[\d,]+ messages in \d+ s; usually [\d,]+"
    assert all(re.fullmatch(sentence, why) for *_, why in found)


def test_users(recorded: Recorded) -> None:
    names = ("delivered", "delivered_bytes", "discarded", "refused")
    by_user: dict[Any, Any] = defaultdict(Counter)
    programs = defaultdict(set)
    for grown in oracles.growth(recorded.tables.clients.to_pylist()).values():
        last = grown["rows"][-1]
        user = last["host"], last["uid"]
        by_user[user].update({"measured": 1, **{name: grown[name] for name in names}})
        programs[user].add(last["program"])
    said = [row for row in oracles.said(recorded.rows) if row.uid is not None]
    for row in said:
        by_user[row.host, row.uid].update(messages=1, bytes=row.size)
        programs[row.host, row.uid].add(row.program)
    found = answer(
        users(recorded.messages, recorded.clients, recorded.events),
        *("host", "uid", "programs", "measured", "messages", "bytes", *names),
    )
    assert keyed(found, 2) == {
        user: (
            sorted(programs[user]),
            *(sums[n] for n in ("measured", "messages", "bytes", *names)),
        )
        for user, sums in by_user.items()
    }
    assert sum(row[3] for row in found) == 28
    assert sum(row[4] for row in found) == len(said) >= MESSAGES


def test_slow_consumers(recorded: Recorded) -> None:
    expected = {}
    grown_by = oracles.growth(recorded.tables.clients.to_pylist())
    for (recorder, _, client, _), grown in grown_by.items():
        rows = grown["rows"]
        backlogs = [row["backlog"] for row in rows]
        stalled = [row["stalled"] for row in rows]
        if grown["discarded"] or any(backlogs) or any(stalled):
            points = [(row["timestamp"].timestamp(), row["backlog"]) for row in rows]
            expected[recorder, client] = (
                len(rows),
                grown["discarded"],
                max(backlogs),
                backlogs[-1],
                pytest.approx(oracles.slope(points), rel=1e-6, abs=1e-9),
                pytest.approx(sum(stalled) / len(stalled)),
            )
    found = answer(
        slow_consumers(recorded.clients),
        *("recorder", "client", "snapshots", "discarded", "backlog_max", "backlog_last"),
        *("backlog_growth", "stalled_share"),
    )
    assert keyed(found, 2) == expected
    assert len(found) == 4


def test_who_sends_what_to_whom(recorded: Recorded) -> None:
    found = answer(
        senders(recorded.messages, depth=2), "host", "uid", "program", "prefix", "messages"
    )
    assert {row[:4]: row[4] for row in found} == oracles.senders(recorded.rows, 2)
    subscribed = [
        (row["host"], row["client"], row["uid"], row["program"], pattern)
        for row in recorded.tables.events.to_pylist()
        if row["event"] == "client-subscribed"
        for pattern in [row["fields"].partition('"pattern": "')[2].partition('"')[0]]
    ]
    assert len(subscribed) == 20
    found = answer(
        receivers(recorded.messages, recorded.events, depth=2),
        *("host", "prefix", "uid", "program", "clients", "deliveries"),
    )
    assert keyed(found, 4) == oracles.receivers(recorded.rows, subscribed, 2)
