"""Spark streams a recording: each row once, while it grows and is rewritten."""

import json
import shutil
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, ReadMinRows
from pyspark.sql.streaming.query import StreamingQuery

from sbus.pipeline.spark.lag import LagListener
from sbus.pipeline.spark.options import source_options
from sbus.pipeline.spark.readers import StreamReader
from sbus.pipeline.store.compaction import compact
from sbus.pipeline.store.schemas import MESSAGES
from sbus.pipeline.store.sealed_table import SealedTable
from tests.support.small_recording import SmallRecorder, numbered
from tests.support.threads import wait_until

FINISH_SECONDS_MAX = 300
ALL = ReadAllAvailable()

Start = Callable[..., StreamingQuery]


def drop(recording: Path) -> None:
    """All that is sealed."""
    table = SealedTable(str(recording), "messages")
    table.remove(table.files())
    table.vacuum(0)


@pytest.fixture
def start(spark: SparkSession, tmp_path: Path) -> Start:
    """Start a stream from the recording in `tmp_path/rec` to files, with the checkpoint of the last
    one; with `once` it ends when it has read what is there."""

    def begin(*, once: bool, **options: str) -> StreamingQuery:
        frame = spark.readStream.format("sbus").options(**options).load(str(tmp_path / "rec"))
        writer = frame.writeStream.format("parquet").options(
            path=str(tmp_path / "out"), checkpointLocation=str(tmp_path / "checkpoint")
        )
        if not once:
            return writer.trigger(processingTime="100 milliseconds").start()
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(FINISH_SECONDS_MAX)
        return query

    return begin


def offsets(spark: SparkSession, directory: Path) -> list[tuple[str, int]]:
    out: DataFrame = spark.read.parquet(str(directory / "out"))
    return sorted((row.host, row.offset) for row in out.select("host", "offset").collect())


class Batches:
    """The batches that Spark would make of a recording, from its beginning."""

    def __init__(self, recording: Path, name: str, **options: str) -> None:
        given = {"path": str(recording), **options}
        self.reader = StreamReader(source_options(given), MESSAGES)
        self.limit = self.reader.getDefaultReadLimit()
        self._offsets = {name: 0}

    def rows(self, limit: ReadLimit | None = None) -> int:
        """The size of the next batch."""
        (before,) = self._offsets.values()
        self._offsets = self.reader.latestOffset(self._offsets, limit or self.limit)
        (after,) = self._offsets.values()
        return after - before


def test_a_batch_waits_for_enough_rows_or_long_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    with SmallRecorder(tmp_path) as alder:
        alder.record(numbered(2))
        least = {"minOffsetsPerTrigger": "5", "maxTriggerDelay": "10s"}
        batches = Batches(tmp_path, alder.qualified_name, **least)
        assert batches.limit == ReadMinRows(5)
        assert batches.rows() == 2, "the first does not wait"
        alder.record(numbered(4, 2))
        now += 9.9
        assert batches.rows() == 0
        alder.record(numbered(1, 6))
        assert batches.rows() == 5
        alder.record(numbered(1, 7))
        now += 10
        assert batches.rows() == 1, "that was the longest delay"
        now += 10
        assert batches.rows() == 0
        alder.record(numbered(1, 8))
        assert batches.rows() == 1, "the batch before is long ago"
        alder.record(numbered(1, 9))
        assert batches.rows() == 0
        assert batches.rows(ALL) == 1, "Trigger.Once wants everything"


def test_a_batch_has_neither_too_few_rows_nor_too_many(tmp_path: Path) -> None:
    with SmallRecorder(tmp_path) as alder:
        alder.record(numbered(4))
        bounds = {"minOffsetsPerTrigger": "2", "maxOffsetsPerTrigger": "3"}
        batches = Batches(tmp_path, alder.qualified_name, **bounds)
        assert batches.limit == ReadMaxRows(3)
        assert [batches.rows(), batches.rows()] == [3, 0]
        alder.record(numbered(1, 4))
        assert batches.rows() == 2
        alder.record(numbered(1, 5))
        assert batches.rows() == 0
        batches.reader.prepareForTriggerAvailableNow()
        assert batches.rows() == 1, "a run that ends has no time to wait"


def test_a_stream_continues_at_its_checkpoint_and_finds_new_recorders(
    spark: SparkSession, start: Start, tmp_path: Path
) -> None:
    recording = tmp_path / "rec"
    with SmallRecorder(recording) as alder:
        alder.record(numbered(10))
        query = start(once=True, startingOffsets="earliest", maxOffsetsPerTrigger="4")
        assert [progress["numInputRows"] for progress in query.recentProgress] == [4, 4, 2]
        alder.record(numbered(5, 10))
        running = start(once=False)
        try:
            running.processAllAvailable()
            with SmallRecorder(recording, "birch") as birch:
                birch.record(numbered(3))
                alder.record(numbered(2, 15))
                running.processAllAvailable()
            progress = running.lastProgress
        finally:
            running.stop()
    assert progress is not None
    assert json.loads(progress["sources"][0]["endOffset"]) == {
        alder.qualified_name: 17,
        birch.qualified_name: 3,
    }
    assert offsets(spark, tmp_path) == [
        *[("alder", offset) for offset in range(17)],
        *[("birch", offset) for offset in range(3)],
    ]


def test_sealing_compaction_and_retention_do_not_disturb_a_stream(
    spark: SparkSession, start: Start, tmp_path: Path
) -> None:
    recording = tmp_path / "rec"
    with SmallRecorder(recording) as alder:
        alder.record(numbered(10))
        running = start(once=False, startingOffsets="earliest", maxOffsetsPerTrigger="7")
        try:
            for _ in range(3):
                alder.record(numbered(10, alder.end))
                alder.roll()
                alder.seal(grace_seconds=3600)  # the stream may be reading the segment file
                alder.record(numbered(5, alder.end))
                compact(SealedTable(str(recording), "messages"), alder.name, date.max)
                running.processAllAvailable()
                alder.seal()
                drop(recording)
        finally:
            running.stop()
        left = spark.read.format("sbus").load(str(recording)).count()
    assert offsets(spark, tmp_path) == [("alder", offset) for offset in range(55)]
    assert left == 5, "what was dropped is gone, but the segment being written stays"


def test_a_listener_tells_how_far_a_query_is_behind(
    spark: SparkSession, start: Start, tmp_path: Path
) -> None:
    with SmallRecorder(tmp_path / "rec") as alder:
        alder.record(numbered(10))
        listener = LagListener(str(tmp_path / "rec"))
        spark.streams.addListener(listener)
        try:
            slow = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "4"}
            running = start(once=False, **slow, minOffsetsPerTrigger="4")
            wait_until(lambda: bool(listener.lags()), "a batch")
            assert list(listener.lags()) == [str(running.id)]
            wait_until(lambda: listener.lags()[str(running.id)].rows == 2, "two batches")
            assert listener.lags()[str(running.id)].seconds > 1
            running.stop()
            wait_until(lambda: not listener.lags(), "the end")
        finally:
            spark.streams.removeListener(listener)


def test_by_default_a_stream_begins_with_the_next_row(
    spark: SparkSession, start: Start, tmp_path: Path
) -> None:
    """Of a recorder that has no row yet, too."""
    recording = tmp_path / "rec"
    with SmallRecorder(recording) as alder, SmallRecorder(recording, "birch") as birch:
        alder.record(numbered(10))
        start(once=True)
        alder.record(numbered(3, 10))
        birch.record(numbered(2))
        start(once=True, minPartitions="2")
    assert offsets(spark, tmp_path) == [
        *[("alder", offset) for offset in (10, 11, 12)],
        *[("birch", offset) for offset in range(2)],
    ]


def test_expired_rows_and_a_recording_that_is_begun_anew_are_errors_unless_allowed(
    spark: SparkSession, start: Start, tmp_path: Path
) -> None:
    recording = tmp_path / "rec"
    with SmallRecorder(recording) as alder:
        alder.record(numbered(4))
        start(once=True, startingOffsets="earliest")
        alder.record(numbered(4, 4))
        alder.roll()
        alder.record(numbered(4, 8))
        alder.seal()
        drop(recording)
        with pytest.raises(StreamingQueryException) as caught:
            start(once=True)
        assert f"rows 4 to 8 of {alder.qualified_name} have expired" in str(caught.value)
        start(once=True, failOnDataLoss="false")
    read = (*range(4), *range(8, 12))
    assert offsets(spark, tmp_path) == [("alder", offset) for offset in read]
    shutil.rmtree(recording)
    with SmallRecorder(recording) as alder:
        alder.record(numbered(7))
    said = "was deleted after offset 12, and begun anew"
    with pytest.raises(StreamingQueryException, match=said):
        start(once=True)
    start(once=True, failOnDataLoss="false")
    start(once=True)
    assert offsets(spark, tmp_path) == sorted(("alder", n) for n in (*read, *range(7)))


def test_an_option_for_batches_ends_the_query_with_one_error(start: Start, tmp_path: Path) -> None:
    with SmallRecorder(tmp_path / "rec"):
        start(once=True)
    for once in (True, False):
        with pytest.raises(StreamingQueryException) as caught:
            start(once=once, endingOffsets="latest").awaitTermination(FINISH_SECONDS_MAX)
        assert "endingOffsets is for batches" in str(caught.value)
        assert "another exception" not in str(caught.value)
