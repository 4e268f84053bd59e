"""Spark publishes rows: everything arrives, and what cannot be published is reported."""

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    BinaryType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
)

import sbus
from sbus.errors import AddressError, ConfigurationError
from sbus.pipeline.spark.publication import Publication, RowsRefused
from sbus.pipeline.spark.sink import StreamWriter
from sbus.pipeline.spark.source import DefaultSource
from sbus.pipeline.spark.staging import Staging
from tests.support.bus import Bus
from tests.support.small_recording import SmallRecorder, numbered

LARGE = b"\x00\xff" * 200_000
TEXTS: dict[str, DataType] = {"value": StringType(), "key": StringType()}
Subscriber = sbus.blocking.Connection[sbus.Message]


def subscriber(bus: Bus) -> Subscriber:
    connection = sbus.blocking.connect(bus.address)
    connection.subscribe("")
    connection.sync()
    return connection


def received(connection: Subscriber) -> list[tuple[bytes, bytes]]:
    """All that was published before this call, sorted."""
    connection.sync()
    waiting = connection.statistics().messages
    return sorted((m.key, m.payload) for m in (connection.receive() for _ in range(waiting)))


def batches(keys: Iterable[object], values: Iterable[object]) -> Iterable[pa.RecordBatch]:
    return [pa.record_batch({"key": list(keys), "value": list(values)})]


def publish(sink: Publication, rows: Iterable[pa.RecordBatch]) -> None:
    sink.publish(map(sink.checked, rows))


# -- without Spark -----------------------------------------------------------------------------


def test_keys_as_text_or_bytes_and_payloads_of_any_size(bus: Bus) -> None:
    sink = Publication(bus.address, None)
    with subscriber(bus) as reader:
        publish(sink, batches(["a\\xff/\\\\", "grüße", ""], [b"", LARGE, b"\x00"]))
        assert received(reader) == sorted(
            [(b"a\xff/\\", b""), ("grüße".encode(), LARGE), (b"", b"\x00")]
        )
        publish(sink, batches([b"\xff\\x", b"k"], ["text", "ü"]))
        assert received(reader) == [(b"k", "ü".encode()), (b"\xff\\x", b"text")]


def test_rows_without_a_key_use_that_of_the_option(bus: Bus) -> None:
    rows = [pa.record_batch({"value": [b"1", b"2"]})]
    with subscriber(bus) as reader:
        publish(Publication(bus.address, b"k"), rows)
        assert received(reader) == [(b"k", b"1"), (b"k", b"2")]


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("a/!/b", b"", "'a/!/b' is one that '!' reserves"),
        ("a\\q", b"", "is no key"),
        ("a\\x00", b"", "NUL"),
        (None, b"", "no key"),
        ("a", None, "'a' has no value"),
        ("k" * 4097, b"", "4097 bytes"),
        ("k", b"x" * 409_600, "409606 bytes"),
    ],
)
def test_rows_before_one_that_is_refused_are_published(
    bus: Bus, key: str | None, value: bytes | None, said: str
) -> None:
    rows = [*batches(["before"], [b"1"]), *batches([key], [value])]
    with subscriber(bus) as reader:
        with pytest.raises(RowsRefused, match=said):
            publish(Publication(bus.address, None), rows)
        assert reader.receive(timeout_seconds=60).key == b"before"


def test_a_task_without_rows_does_not_connect() -> None:
    publish(Publication("/nowhere/bus", None), [])
    with pytest.raises(AddressError):
        publish(Publication("/nowhere/bus", None), batches(["a"], [b""]))


def test_a_stream_publishes_nothing_of_a_batch_with_a_row_that_cannot_be_published(
    bus: Bus, tmp_path: Path
) -> None:
    writer = StreamWriter(Publication(bus.address, None), Staging(str(tmp_path)))
    with subscriber(bus) as reader:
        tasks = [writer.write(iter(batches([key], [b""]))) for key in ("before", "a/!/b")]
        with pytest.raises(RowsRefused, match="'a/!/b' is one that '!' reserves"):
            writer.commit([*tasks], 0)
        assert received(reader) == []


def test_a_stream_without_rows_needs_no_bus(tmp_path: Path) -> None:
    writer = StreamWriter(Publication("/nowhere/bus", None), Staging(str(tmp_path)))
    writer.commit([writer.write(iter([]))], 0)
    writer.commit([], 1)


def test_a_stream_needs_the_place_of_its_checkpoint() -> None:
    source = DefaultSource({"socket": "/run/sbus.socket", "key": "k"})
    with pytest.raises(ConfigurationError, match="checkpointLocation"):
        source.streamWriter(StructType([StructField("value", BinaryType())]), False)


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        ({"id": LongType()}, {}, "no column is called value: there are id"),
        ({"value": StringType()}, {}, "neither column nor option is called key"),
        (TEXTS, {"key": "k"}, "both column and option are called key"),
        ({"value": LongType(), "key": StringType()}, {}, "the column value is bigint"),
        (TEXTS, {"sockt": "x"}, "did you mean socket"),
    ],
)
def test_a_frame_that_cannot_be_published_is_refused(
    columns: dict[str, DataType], options: dict[str, str], said: str
) -> None:
    schema = StructType([StructField(name, kind) for name, kind in columns.items()])
    with pytest.raises(ConfigurationError) as caught:
        DefaultSource({"socket": "/run/sbus.socket", **options}).writer(schema, False)
    assert said in str(caught.value)


# -- by Spark ----------------------------------------------------------------------------------


def test_all_tasks_of_a_data_frame_publish_their_rows(spark: SparkSession, bus: Bus) -> None:
    frame = spark.range(3_000, numPartitions=4).selectExpr(
        "concat('n/', id % 7) AS key", "encode(string(id), 'utf-8') AS value", "id AS more"
    )
    with subscriber(bus) as reader:
        frame.write.format("sbus").option("socket", bus.address).mode("append").save()
        assert received(reader) == sorted(numbered(3_000))


def test_a_stream_of_a_recording_is_published(
    spark: SparkSession, bus: Bus, tmp_path: Path
) -> None:
    with SmallRecorder(tmp_path / "rec") as alder:
        alder.record(numbered(20))
    frame = spark.readStream.format("sbus").option("startingOffsets", "earliest")
    with subscriber(bus) as reader:
        query = (
            frame.load(str(tmp_path / "rec"))
            .writeStream.format("sbus")
            .options(socket=bus.address, checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)
        assert received(reader) == sorted(numbered(20))


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (["id"], "no column is called value: there are id"),
        (["'v' AS value", "'!' AS key"], "the key '!' is one that '!' reserves"),
    ],
)
def test_the_driver_reports_what_cannot_be_published(
    spark: SparkSession, bus: Bus, columns: list[str], said: str
) -> None:
    writer = spark.range(1).selectExpr(*columns).write.format("sbus").mode("append")
    with pytest.raises(AnalysisException) as caught:
        writer.option("socket", bus.address).save()
    assert said in str(caught.value)


def test_a_refusal_ends_a_stream(spark: SparkSession, bus: Bus, tmp_path: Path) -> None:
    with SmallRecorder(tmp_path / "rec") as alder:
        alder.record([(b"a", b"1"), (b"a/!/b", b"2")])
    frame = spark.readStream.format("sbus").option("startingOffsets", "earliest")
    query = (
        frame.load(str(tmp_path / "rec"))
        .writeStream.format("sbus")
        .options(socket=bus.address, checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination(60)
    assert "'a/!/b' is one that '!' reserves" in str(caught.value)
