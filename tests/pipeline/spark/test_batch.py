"""Spark reads a recording as a batch: every selected row once."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from tests.support.small_recording import FIRST_US, STEP_US, SmallRecorder, numbered

LARGE = b"\x00\xff" * 200_000
ODD = [(b"\xff/\\", b""), (b"gr\xc3\xbc\xc3\x9fe", LARGE), (b"new\nline", b"\x00")]


def load(spark: SparkSession, directory: Path, **options: object) -> DataFrame:
    reader = spark.read.format("sbus")
    return reader.options(**{name: str(value) for name, value in options.items()}).load(
        str(directory)
    )


def rows(frame: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.select(*columns).collect())


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """alder: 0 to 9 in Parquet, 10 to 19 in a segment that has ended, 20 to 23 (odd ones, and a
    gap) in the one being written; birch: 0 to 4."""
    directory = tmp_path_factory.mktemp("recording")
    alder = SmallRecorder(directory)
    alder.record(numbered(10))
    alder.roll()
    alder.seal()
    alder.record(numbered(10, 10))
    alder.roll()
    alder.record(ODD)
    alder.record_gap(None)
    with SmallRecorder(directory, "birch") as birch:
        birch.record(numbered(5))
    return directory, alder.name, birch.name


def test_every_row_of_every_recorder_once(
    spark: SparkSession, recorded: tuple[Path, str, str]
) -> None:
    directory, alder, birch = recorded
    found = rows(load(spark, directory, minPartitions=5), "recorder", "offset")
    assert found == [(alder, n) for n in range(24)] + [(birch, n) for n in range(5)]


def test_binary_keys_and_payloads_of_any_size(
    spark: SparkSession, recorded: tuple[Path, str, str]
) -> None:
    directory, alder, _ = recorded
    frame = load(spark, directory, startingOffsets=f'{{"{alder}": 20}}')
    found = {row.key: bytes(row.value) for row in frame.where(f"recorder = '{alder}'").collect()}
    assert found == {"\\xff/\\\\": b"", "grüße": LARGE, "new\\x0aline": b"\x00", "": b""}


def test_columns_are_as_they_were_recorded(
    spark: SparkSession, recorded: tuple[Path, str, str]
) -> None:
    directory, _, birch = recorded
    frame = load(spark, directory, endingOffsets=f'{{"{birch}": 1}}').where("host = 'birch'")
    (row,) = frame.selectExpr("*", "unix_micros(timestamp) AS timestamp_us").collect()
    assert (row.key, bytes(row.value), row.kind, row.lost) == ("n/0", b"0", "MSG", None)
    assert (row.recorder, row.bus, row.offset) == (birch, "/run/sbus.socket", 0)
    assert (row.timestamp_us, row.client, row.program) == (FIRST_US, None, None)


def test_a_subscription_selects_its_keys_and_the_gaps(
    spark: SparkSession, recorded: tuple[Path, str, str]
) -> None:
    directory, _, _ = recorded
    found = rows(load(spark, directory, subscribe="n/3,\\xff/*"), "kind", "key", "offset")
    assert found == [
        ("GAP", "", 23),
        *[("MSG", "\\xff/\\\\", 20)],
        *[("MSG", "n/3", offset) for offset in (3, 3, 10, 17)],
    ]


@pytest.mark.parametrize(("first", "last"), [(9, 21), (4, 4)])
def test_between_offsets(
    spark: SparkSession, recorded: tuple[Path, str, str], first: int, last: int
) -> None:
    directory, alder, birch = recorded
    bounds = {
        "startingOffsets": f'{{"{alder}": {first}, "{birch}": 4}}',
        "endingOffsets": f'{{"{alder}": {last}, "{birch}": 4}}',
    }
    found = rows(load(spark, directory, **bounds), "offset")
    assert found == [(offset,) for offset in range(first, last)]


def test_a_reversed_range_is_an_error(spark: SparkSession, recorded: tuple[Path, str, str]) -> None:
    directory, alder, _ = recorded
    bounds = {"startingOffsets": f'{{"{alder}": 9}}', "endingOffsets": f'{{"{alder}": 8}}'}
    with pytest.raises(AnalysisException, match=rf"{alder}@\w+ begins at offset 9 and ends"):
        load(spark, directory, **bounds).count()


def test_between_timestamps(spark: SparkSession, recorded: tuple[Path, str, str]) -> None:
    directory, _, _ = recorded
    first_ms, last_ms = ((FIRST_US + n * STEP_US) // 1000 for n in (3, 12))
    frame = load(spark, directory, startingTimestamp=first_ms, endingTimestamp=last_ms)
    assert rows(frame, "host", "offset") == [
        *[("alder", offset) for offset in range(3, 12)],
        *[("birch", offset) for offset in (3, 4)],
    ]


def test_a_schema_selects_columns(spark: SparkSession, recorded: tuple[Path, str, str]) -> None:
    directory, _, _ = recorded
    reader = spark.read.format("sbus").schema("value BINARY, offset BIGINT")
    frame = reader.option("subscribe", "n/4").load(str(directory)).where("offset < 8")
    assert sorted((row.offset, bytes(row.value)) for row in frame.collect()) == [
        *[(4, b"4"), (4, b"4")],
    ]


@pytest.mark.parametrize("table", ["clients", "events"])
def test_a_table_without_rows(
    spark: SparkSession, recorded: tuple[Path, str, str], table: str
) -> None:
    frame = load(spark, recorded[0], table=table)
    assert frame.count() == 0
    assert {"recorder", "offset", "timestamp", "client"} <= set(frame.columns)


def test_a_mistake_is_reported_where_it_was_made(
    spark: SparkSession, recorded: tuple[Path, str, str]
) -> None:
    with pytest.raises(AnalysisException, match="did you mean startingOffsets"):
        load(spark, recorded[0], startingOfsets="earliest")


def test_a_directory_that_is_no_recording_is_an_error_of_load(
    spark: SparkSession, tmp_path: Path, recorded: tuple[Path, str, str]
) -> None:
    recording, alder, _ = recorded
    for path, said in (
        (tmp_path / "nowhere", f"{tmp_path}/nowhere is no directory"),
        (tmp_path, f"{tmp_path} holds no recording"),
        (recording / alder, f"one recorder's part of a recording: give {recording}"),
    ):
        with pytest.raises(AnalysisException) as caught:
            spark.read.format("sbus").load(str(path))
        assert said in str(caught.value)
    with pytest.raises(AnalysisException, match="holds no recording"):
        spark.readStream.format("sbus").load(str(tmp_path))


def test_a_recording_can_be_a_table_of_the_catalog(
    spark: SparkSession, recorded: tuple[Path, str, str]
) -> None:
    directory, alder, _ = recorded
    spark.sql(
        f"CREATE TABLE by_options USING sbus OPTIONS (path '{directory}', subscribe 'n/3') "
        "TBLPROPERTIES ('team' = 'x')"
    )
    spark.sql(f"CREATE TABLE by_location USING sbus LOCATION '{directory}'")
    spark.catalog.createTable("clients", path=str(directory), source="sbus", table="clients")
    assert spark.table("by_options").where("kind = 'MSG'").count() == 4
    until = spark.read.option("endingOffsets", f'{{"{alder}": 3}}').table("by_location")
    assert until.where("host = 'alder'").count() == 3
    assert "messages_in" in spark.table("clients").columns
    assert spark.readStream.table("by_location").isStreaming
    with pytest.raises(AnalysisException, match="unknown option 'tabel'; did you mean table"):
        spark.catalog.createTable("wrong", path=str(directory), source="sbus", tabel="clients")


@pytest.mark.parametrize(
    ("schema", "said"),
    [("rooms STRING", "no column 'rooms'"), ("offset STRING", "offset of the table messages is")],
)
def test_a_schema_that_does_not_fit_is_reported(
    spark: SparkSession, recorded: tuple[Path, str, str], schema: str, said: str
) -> None:
    frame = spark.read.format("sbus").schema(schema).load(str(recorded[0]))
    with pytest.raises(AnalysisException) as caught:
        frame.collect()
    assert said in str(caught.value)
