"""Spark streams a recording: each row once, while it grows and is rewritten."""

import json
import shutil
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from sbus.pipeline.store.sealed_table import SealedTable
from tests.support.small_recording import SmallRecorder, numbered

FINISH_SECONDS_MAX = 60

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
                alder.seal()
                alder.record(numbered(5, alder.end))
                SealedTable(str(recording), "messages").compact(alder.name, date.max)
                running.processAllAvailable()
                drop(recording)
        finally:
            running.stop()
        left = spark.read.format("sbus").load(str(recording)).count()
    assert offsets(spark, tmp_path) == [("alder", offset) for offset in range(55)]
    assert left == 5, "what was dropped is gone, but the segment being written stays"


def test_by_default_a_stream_begins_with_the_next_row(
    spark: SparkSession, start: Start, tmp_path: Path
) -> None:
    with SmallRecorder(tmp_path / "rec") as alder:
        alder.record(numbered(10))
        start(once=True)
        alder.record(numbered(3, 10))
        start(once=True, minPartitions="2")
    assert offsets(spark, tmp_path) == [("alder", offset) for offset in (10, 11, 12)]


def test_a_stream_may_begin_before_the_first_row(
    spark: SparkSession, start: Start, tmp_path: Path
) -> None:
    with SmallRecorder(tmp_path / "rec") as alder:
        start(once=True)
        alder.record(numbered(3))
        start(once=True)
    assert offsets(spark, tmp_path) == [("alder", offset) for offset in range(3)]


def test_expired_rows_are_an_error_unless_allowed(
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
    assert offsets(spark, tmp_path) == [("alder", offset) for offset in (*range(4), *range(8, 12))]


def test_a_recording_that_is_begun_anew_is_an_error_unless_allowed(
    spark: SparkSession, start: Start, tmp_path: Path
) -> None:
    recording = tmp_path / "rec"
    with SmallRecorder(recording) as alder:
        alder.record(numbered(4))
    start(once=True, startingOffsets="earliest")
    shutil.rmtree(recording)
    with SmallRecorder(recording) as alder:
        alder.record(numbered(7))
    with pytest.raises(StreamingQueryException, match="was deleted after offset 4, and begun anew"):
        start(once=True)
    start(once=True, failOnDataLoss="false")
    start(once=True)
    assert offsets(spark, tmp_path) == sorted(("alder", n) for n in (*range(4), *range(7)))


@pytest.mark.parametrize("once", [True, False])
def test_an_option_for_batches_ends_the_query_with_one_error(
    start: Start, tmp_path: Path, once: bool
) -> None:
    with SmallRecorder(tmp_path / "rec"):
        start(once=True)
    with pytest.raises(StreamingQueryException) as caught:
        start(once=once, endingOffsets="latest").awaitTermination(FINISH_SECONDS_MAX)
    assert "endingOffsets is for batches" in str(caught.value)
    assert "another exception" not in str(caught.value)
