"""Jobs on unusual recordings: empty, only gaps, without publishers, with odd keys, with clocks that
were set back."""

import math
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from sbus.pipeline.jobs.anomalies import WINDOWS_MIN, anomalies
from sbus.pipeline.jobs.clients import slow_consumers, users
from sbus.pipeline.jobs.flows import deliveries, fan_out, receivers
from sbus.pipeline.jobs.gaps import gaps, losses
from sbus.pipeline.jobs.latency import broker_latency, latency
from sbus.pipeline.jobs.replay import Recorded, paced, replay
from sbus.pipeline.jobs.traffic import hot_keys, traffic
from sbus.pipeline.report.facts import joined_losses
from sbus.pipeline.store.schemas import CLIENTS, EVENTS
from tests.pipeline.jobs import oracles
from tests.support.job_results import GAP_COLUMNS, LOSS_COLUMNS, answer, keyed
from tests.support.job_rows import (
    SECOND_US,
    T0,
    Row,
    frame,
    gap,
    message,
    snapshot,
    table,
    twice_recorded,
)

keys = st.one_of(
    st.sampled_from(
        [b"a", b"a/b", b"a/b/c", b"a//", b"", b"\xff\xfe/\x80", b"a\\b/\x01", b"!/cred/0/0/7/x"]
    ),
    st.binary(max_size=8).map(lambda key: key.replace(b"\0", b"/")),
)
clients = st.sampled_from([(None, None, None), (1, 10, 0), (2, 20, 1000), (1, 11, 0)])


@st.composite
def recordings(draw: st.DrawFn) -> list[Row]:
    """Rows of two recorders with arbitrary clocks, of which one began anew."""
    rows = []
    for recorder, incarnation, host in (
        *(("r1", "i2", "alder"), ("r1", "i1", "alder")),
        ("r2", "i3", "birch"),
    ):
        for offset in range(draw(st.integers(0, 12))):
            origin = {"recorder": recorder, "incarnation": incarnation, "offset": offset}
            origin |= {"host": host, "bus": "/b"}
            time_us = T0 + draw(st.integers(-5, 20)) * SECOND_US + draw(st.integers(0, 999_999))
            if draw(st.integers(0, 4)) == 0:
                lost = draw(st.none() | st.integers(0, 10))
                rows.append(gap(lost=lost, **origin, timestamp=time_us))
                continue
            client, pid, uid = draw(clients)
            recipients = None if client is None else draw(st.integers(0, 3))
            rows.append(
                message(
                    draw(keys),
                    draw(st.none() | st.binary(max_size=20)),
                    **origin,
                    **{"timestamp": time_us, "client": client, "pid": pid, "uid": uid},
                    recipients=recipients,
                )
            )
    return rows


ONLY_GAPS = [
    gap(recorder="r1", host="alder", offset=n, timestamp=T0 - n * SECOND_US, lost=lost)
    for n, lost in enumerate((3, None, 0))
]
ONLY_ONE_HOST_HAS_ENOUGH_WINDOWS = [
    message(b"a", recorder="r1", host="alder", offset=0, timestamp=T0),
    *(
        message(b"b", recorder="r2", host="birch", offset=offset, timestamp=T0 + at * SECOND_US)
        for offset, at in enumerate((9, 0, 1))
    ),
]
"""The host without incidents comes first. No publisher is known."""


@settings(
    max_examples=settings().max_examples // 10,  # each takes seconds
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@example(ONLY_GAPS)
@example(ONLY_ONE_HOST_HAS_ENOUGH_WINDOWS)
@example(twice_recorded().messages)
@given(recordings())
def test_results_equal_the_oracles_for_any_messages(
    spark: SparkSession, found_rows: list[Row]
) -> None:
    made = table(found_rows)
    rows = oracles.rows(made)
    messages = frame(spark, found_rows).persist()
    try:
        found = answer(
            traffic(messages, depth=2, window_seconds=4),
            *("start", "prefix", "messages", "bytes", "publishers"),
        )
        assert keyed(found, 2) == oracles.traffic(rows, 2, 4 * SECOND_US)
        assert [row[0] for row in found] == sorted(row[0] for row in found)
        found = answer(
            hot_keys(messages, top=3, by="bytes"),
            *("key", "messages", "bytes", "publishers", "first", "last"),
        )
        assert found == oracles.hot_keys(rows, 3, 2)
        assert dict(answer(fan_out(messages), "recipients", "messages")) == oracles.fan_out(rows)
        found = answer(
            deliveries(messages, depth=2),
            *("prefix", "messages", "deliveries", "delivered_bytes", "recipients_mean"),
            *("recipients_max", "unheard", "unknown"),
        )
        assert {row[0]: row[1:] for row in found} == oracles.deliveries(rows, 2)
        assert [row[2] for row in found] == sorted((row[2] for row in found), reverse=True)
        assert answer(gaps(messages), *GAP_COLUMNS) == oracles.gaps(rows)
        found = answer(losses(messages, window_seconds=4), *LOSS_COLUMNS)
        assert keyed(found, 3) == oracles.losses(rows, 4 * SECOND_US)
        expected = oracles.anomalies(rows, 1, SECOND_US, 1.0, WINDOWS_MIN)
        found = answer(
            anomalies(messages, depth=1, window_seconds=1, score_min=1.0),
            *("host", "prefix", "start", "end", "messages", "score"),
        )
        assert keyed(found, 4) == {k: (n, pytest.approx(s)) for k, (n, s) in expected.items()}
    finally:
        messages.unpersist()


def test_counts_from_before_the_recording_do_not_belong_to_it(spark: SparkSession) -> None:
    rows = [
        snapshot(0, delivered=100, discarded=5),
        # The clock goes back, and then its worker does not answer.
        snapshot(1, delivered=130, discarded=5, timestamp=T0 - 50),
        snapshot(2, messages_in=None, discarded=None, backlog=None, stalled=None),
        # It came while it was recorded; and this is another one after the bus was started again.
        snapshot(3, client=2, delivered=40, connected_at=T0 + 2 * SECOND_US),
        snapshot(4, delivered=9, connected_at=T0 + 3 * SECOND_US),
        snapshot(0, recorder="r2", host="birch", delivered=1_000),
    ]
    found = answer(
        users(frame(spark, []), frame(spark, rows, CLIENTS), frame(spark, [], EVENTS)),
        *("host", "uid", "measured", "messages", "delivered", "discarded"),
    )
    assert sorted(found) == [("alder", 7, 3, 0, 30 + 40 + 9, 0), ("birch", 7, 1, 0, 0, 0)]


def test_clients_that_no_snapshot_has_are_counted_but_not_measured(spark: SparkSession) -> None:
    own: Row = {"recorder": "r1", "host": "alder", "uid": 7, "timestamp": T0}
    messages = [
        message(b"a", b"four", **own, offset=0, client=5, pid=50, program="short"),
        message(b"a", b"four", **own, offset=1, client=5, pid=50, program="short"),
        message(b"a", b"four", **{**own, "uid": None}, offset=2),
    ]
    events = [
        {**own, "offset": n, "event": event, "client": client, "pid": 10 * client, "program": "p"}
        for n, (event, client) in enumerate(
            [("client-connected", 5), ("client-connected", 6), ("packet-refused", 9)]
        )
    ]
    names = ("uid", "messages", "bytes", "clients", "measured", "delivered", "discarded")
    found = answer(
        users(frame(spark, messages), frame(spark, [], CLIENTS), frame(spark, events, EVENTS)),
        *names,
    )
    assert found == [(7, 2, 8, 2, 0, None, None)]
    snapshots = [snapshot(0, client=6, pid=60, connected_at=T0, delivered=3)]
    found = answer(
        users(
            frame(spark, messages), frame(spark, snapshots, CLIENTS), frame(spark, events, EVENTS)
        ),
        *names,
    )
    assert found == [(7, 2, 8, 2, 1, 3, 0)]


def test_clients_without_backlog_stall_or_discard_are_not_slow(spark: SparkSession) -> None:
    rows = [
        snapshot(0, discarded=5),
        snapshot(1, discarded=5),
        snapshot(2, client=2, backlog=4),
        snapshot(3, client=3, stalled=True),
    ]
    found = answer(
        slow_consumers(frame(spark, rows, CLIENTS)),
        *("client", "discarded", "backlog_max", "backlog_growth", "stalled_share"),
    )
    assert found == [(2, 0, 4, None, 0.0), (3, 0, 0, None, 1.0)]
    assert answer(slow_consumers(frame(spark, [], CLIENTS)), "client") == []
    nobody = users(frame(spark, []), frame(spark, [], CLIENTS), frame(spark, [], EVENTS))
    assert answer(nobody, "uid") == []


def test_impossible_probes_are_counted_as_unusable(spark: SparkSession) -> None:
    own: Row = {"recorder": "r1", "host": "alder"}
    rows = [
        message(b"sbus/probe/r1", b"%d" % (T0 - 1_500), **own, offset=0, timestamp=T0),
        message(b"sbus/probe/r1", b"%d" % (T0 + 1), **own, offset=1, timestamp=T0),
        message(b"sbus/probe/r1", b"\xffnonsense", **own, offset=2, timestamp=T0),
        message(b"sbus/probe/r1", None, **own, offset=3, timestamp=T0),
        message(b"sbus/probe/r2", b"%d" % T0, **own, offset=4, timestamp=T0 + 9),
    ]
    names = ("recorder", "probes", "unusable", "p50_ms", "max_ms")
    assert answer(latency(frame(spark, rows), window_seconds=60), *names) == [
        ("r1", 4, 3, 1.5, 1.5)
    ]
    assert answer(latency(frame(spark, rows[1:3])), *names) == [("r1", 2, 2, None, None)]


def test_counts_of_a_restarted_bus_begin_at_zero(spark: SparkSession) -> None:
    counts = ([5, 5], [8, 6], [1, 0], [2, 3])
    rows = [
        {
            **{"recorder": "r1", "host": "alder", "offset": n, "timestamp": T0, "event": "stats"},
            "fields": f'{{"latency": {{"bounds_us": [100], "counts": {count}, "sum_us": 1}}}}',
        }
        for n, count in enumerate(counts)
    ]
    rows.append({**rows[0], "offset": 9, "fields": "no JSON"})
    found = answer(broker_latency(frame(spark, rows, EVENTS)), "bound_us", "deliveries")
    assert found == [(100, 3 + 1 + 1), (None, 1 + 0 + 3)]


def test_receivers_match_patterns_as_the_protocol_does(spark: SparkSession) -> None:
    patterns = ["", "a/", "a/*/c", "a/b*", "a.*", "a/b/c", "\\xff*/", "(", "[^/]*", "*/b/"]
    texts = [b"a", b"a/", b"a/b", b"a/bcd", b"a/b/c", b"axb", b"\xff\xfe/x", b"(", b"!/cred//0/7/k"]
    rows = [
        message(key, recorder="r1", host="alder", offset=n, timestamp=T0 + n)
        for n, key in enumerate(texts)
    ]
    events = [
        {
            **{"recorder": "r1", "host": "alder", "offset": n, "timestamp": T0},
            **{"event": "client-subscribed", "client": n, "uid": 5, "pid": n, "program": "p"},
            "fields": pa_json(pattern),
        }
        for n, pattern in enumerate(patterns)
    ]
    found = answer(
        receivers(frame(spark, rows), frame(spark, events, EVENTS), depth=9),
        *("host", "prefix", "uid", "program", "clients", "deliveries"),
    )
    subscribed = [("alder", n, 5, "p", pattern) for n, pattern in enumerate(patterns)]
    assert keyed(found, 4) == oracles.receivers(oracles.rows(table(rows)), subscribed, 9)


def pa_json(pattern: str) -> str:
    escaped = pattern.replace("\\", "\\\\")
    return f'{{"pattern": "{escaped}"}}'


def test_replay_publishes_the_recorded_messages(spark: SparkSession) -> None:
    r1: Row = {"recorder": "r1", "host": "alder"}
    r2: Row = {"recorder": "r2", "host": "birch"}
    rows = [
        message(b"\xff/a\\", b"one", **r1, offset=0, timestamp=T0 + 100),
        message(b"stepped/back", b"two", **r1, offset=1, timestamp=T0 - 5_000),
        gap(**r1, offset=2, timestamp=T0 + 101, lost=3),
        message(b"sbus/probe/r1", b"5", **r1, offset=3, timestamp=T0 + 102),
        message(b"!/cred/0/0/7/secret", b"5", **r1, offset=4, timestamp=T0 + 103),
        message(b"last", None, **r1, offset=5, timestamp=T0 + 300),
        message(b"between", b"\0", **r2, offset=0, timestamp=T0 + 200),
    ]
    published: list[tuple[bytes, bytes]] = []
    count = replay(
        frame(spark, rows), lambda key, payload: published.append((key, payload)), speed=None
    )
    assert published == [
        *((b"\xff/a\\", b"one"), (b"stepped/back", b"two")),
        *((b"between", b"\0"), (b"last", b"")),
    ]
    assert count == 4


class Clock:
    """A clock that only sleeping and working advance."""

    def __init__(self) -> None:
        self._now = 50.0

    def now(self) -> float:
        return self._now

    def pass_by(self, seconds: float) -> None:
        self._now += seconds

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.pass_by(seconds)


@given(
    st.lists(st.integers(0, 10**9), max_size=20).map(sorted),
    st.floats(0.1, 100),
    st.lists(st.floats(0, 3), min_size=20, max_size=20),
)
def test_a_message_is_published_when_it_is_due_or_immediately_if_late(
    due: list[int], speed: float, delays: list[float]
) -> None:
    """Publishing takes some time; a message that is late because of that is not delayed further."""
    clock = Clock()
    messages = [Recorded(b"k", b"", when) for when in due]
    free_at = began = clock.now()
    for delay, sent in zip(delays, paced(messages, speed, clock.now, clock.sleep), strict=False):
        intended = began + (sent.due_us - due[0]) / SECOND_US / speed
        assert math.isclose(clock.now(), max(intended, free_at), rel_tol=1e-9, abs_tol=1e-6)
        clock.pass_by(delay)
        free_at = clock.now()


def test_times_are_utc(spark: SparkSession) -> None:
    rows = [message(b"a", b"x", recorder="r1", host="h", offset=0, timestamp=T0 + 90 * SECOND_US)]
    (start,) = traffic(frame(spark, rows), window_seconds=60).toArrow()["start"].to_pylist()
    assert start == datetime.fromtimestamp((T0 // SECOND_US + 90) // 60 * 60, UTC)


def test_a_loss_lasts_from_the_row_before_it_through_neighbouring_windows(
    spark: SparkSession,
) -> None:
    """Windows of a second. A recording begins with a gap, which no row precedes."""
    rows: list[Row] = []
    for offset, (at_ms, lost) in enumerate(
        [(0, 1), (2_500, "-"), (2_700, 5), (3_400, None), (5_000, "-"), (5_100, 7), (5_200, 8)]
    ):
        of: Row = {"recorder": "r1", "host": "alder", "bus": "/b", "offset": offset}
        of["timestamp"] = T0 + at_ms * 1_000
        rows.append(message(b"a", **of) if lost == "-" else gap(lost=lost, **of))
    by_window = losses(frame(spark, rows), window_seconds=1).toArrow().to_pylist()
    found = [
        (
            *(round((row[name].timestamp() - T0 / 1e6) * 1_000) for name in ("since", "until")),
            *(row[name] for name in ("gaps", "lost", "unknown")),
        )
        for row in joined_losses(by_window, 1)
    ]
    assert found == [(0, 0, 1, 1, 0), (2_500, 3_400, 2, 5, 1), (5_000, 5_200, 2, 15, 0)]
