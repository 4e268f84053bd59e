"""A stream from the bus itself: what arrives, and what a restart loses."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.streaming.query import StreamingQuery

import sbus
from sbus.errors import ConfigurationError, Disconnected
from sbus.pipeline.spark.live import LiveReader
from sbus.pipeline.spark.options import source_options
from sbus.pipeline.store.schemas import MESSAGES
from tests.support.bus import Bus, stop
from tests.support.threads import wait_until

Row = tuple[str, bytes, str, int | None]
ALL = ReadAllAvailable()


Live = Callable[..., LiveReader]


@pytest.fixture
def live(bus: Bus) -> Iterator[Live]:
    """Makes readers, and stops them in the end. Each warns that it promises nothing."""
    made = []

    def make(**options: str) -> LiveReader:
        made.append(LiveReader(source_options({"socket": bus.address, **options}), MESSAGES))
        return made[-1]

    with pytest.warns(UserWarning, match="cannot be read again"):
        yield make
    for reader in made:
        reader.stop()


def publish(bus: Bus, *messages: tuple[bytes, bytes]) -> None:
    with sbus.blocking.connect(bus.address) as connection:
        for key, payload in messages:
            connection.publish(key, payload)
        connection.sync()


def rows(reader: LiveReader, start: dict[str, int], end: dict[str, int]) -> list[Row]:
    """What tasks read of a batch; offsets are consecutive from the start."""
    batches = [b for part in reader.partitions(start, end) for b in reader.read(part)]
    found = [row for batch in batches for row in batch.to_pylist()]
    (first,) = start.values() or (0,)
    assert [row["offset"] for row in found] == list(range(first, first + len(found)))
    return [(row["key"], row["value"], row["kind"], row["lost"]) for row in found]


def wait_for(reader: LiveReader, start: dict[str, int], count: int) -> dict[str, int]:
    """The offset when so many rows have come since `start`."""
    (first,) = start.values() or (0,)
    wait_until(lambda: [*reader.latestOffset(start, ALL).values()] >= [first + count], "rows")
    return reader.latestOffset(start, ALL)


def test_matching_messages_arrive_from_now_on(bus: Bus, live: Live) -> None:
    publish(bus, (b"a/early", b""))
    reader = live(subscribe="a/,b\\xff")
    start = reader.initialOffset()
    publish(bus, (b"a/1", b"one"), (b"c", b""), (b"b\xff", b"\x00"))
    end = wait_for(reader, start, 2)
    expected = [("a/1", b"one", "MSG", None), ("b\\xff", b"\x00", "MSG", None)]
    assert rows(reader, start, end) == expected
    assert rows(reader, start, end) == expected, "asked again, it is the same until it is committed"
    reader.commit(end)
    assert reader.partitions(end, end) == []


def test_a_limit_holds_for_each_batch(bus: Bus, live: Live) -> None:
    reader = live(maxOffsetsPerTrigger="2")
    assert reader.getDefaultReadLimit() == ReadMaxRows(2)
    start = reader.initialOffset()
    publish(bus, *[(b"k", b"%d" % number) for number in range(5)])
    wait_for(reader, start, 5)
    middle = reader.latestOffset(start, ReadMaxRows(2))
    assert [value for _, value, _, _ in rows(reader, start, middle)] == [b"0", b"1"]
    reader.commit(middle)
    end = reader.latestOffset(middle, ALL)
    assert [value for _, value, _, _ in rows(reader, middle, end)] == [b"2", b"3", b"4"]


def test_after_a_restart_a_gap_stands_for_what_was_missed(live: Live) -> None:
    reader = live()
    end = wait_for(reader, {"live": 7}, 1)
    assert rows(reader, {"live": 7}, end) == [("", b"", "GAP", None)]


def test_an_unfinished_batch_becomes_a_counted_gap(live: Live) -> None:
    reader = live()
    start, end = {"live": 3}, {"live": 9}
    assert rows(reader, start, end) == [("", b"", "GAP", 6)]
    after = wait_for(reader, end, 1)
    assert rows(reader, end, after) == [("", b"", "GAP", None)]


def test_the_end_of_the_bus_is_raised_after_all_rows_are_read(bus: Bus, live: Live) -> None:
    reader = live()
    start = reader.initialOffset()
    publish(bus, (b"a", b""))
    end = wait_for(reader, start, 1)
    stop(bus)
    assert len(rows(reader, start, end)) == 1
    reader.commit(end)

    def ended() -> bool:
        try:
            return reader.latestOffset(end, ALL) is None
        except Disconnected:
            return True

    wait_until(ended, "the end of the bus")


def test_a_missing_bus_is_named(tmp_path: Path) -> None:
    options = source_options({"socket": str(tmp_path / "nothing")})
    with pytest.warns(match="record the bus"), pytest.raises(ConfigurationError, match="nothing"):
        LiveReader(options, MESSAGES).initialOffset()


# -- by Spark ----------------------------------------------------------------------------------

Begin = Callable[[], StreamingQuery]


def test_spark_streams_published_messages(spark: SparkSession, bus: Bus) -> None:
    options = {"socket": bus.address, "subscribe": "a/"}
    frame = spark.readStream.format("sbus").options(**options).load()
    query = frame.writeStream.format("memory").queryName("live").start()
    try:
        # It listens once its first batch is over, of whatever there was.
        wait_until(lambda: query.lastProgress is not None, "the first batch", timeout_s=60)
        publish(bus, (b"a/\xff", b"\x00"), (b"a/2", b""), (b"b", b""))
        table = spark.table("live")
        wait_until(lambda: table.count() >= 2, "the rows", timeout_s=60)
        found = sorted((row.key, bytes(row.value)) for row in table.collect())
        assert found == [("a/2", b""), ("a/\\xff", b"\x00")]
    finally:
        query.stop()
