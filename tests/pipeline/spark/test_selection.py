"""What jobs read: every row once, from whichever file has it, and no file that cannot have any."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from sbus.pipeline.spark.selection import read
from tests.support.small_recording import FIRST_US, STEP_US, SmallRecorder, numbered


def at(row: int) -> datetime:
    """The time of a row of any recorder."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=FIRST_US + row * STEP_US)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """alder: 0 to 29 in three sealed files, 30 to 34 in the hot log; birch: 0 to 9, sealed."""
    directory = tmp_path_factory.mktemp("recording")
    with SmallRecorder(directory, "birch") as birch:
        birch.record(numbered(10))
        birch.roll()
        birch.seal()
    alder = SmallRecorder(directory)
    for first in (0, 10, 20):
        alder.record(numbered(10, first))
        alder.roll()
    alder.seal()
    alder.record(numbered(5, 30))
    return directory


def offsets(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.select("host", "offset").collect())


def rows(host: str, *between: int) -> list[tuple[str, int]]:
    return [(host, offset) for offset in range(*between)]


def test_it_has_the_rows_and_columns_of_the_source(spark: SparkSession, recorded: Path) -> None:
    found = read(spark, str(recorded))
    by_source = spark.read.format("sbus").load(str(recorded))
    assert found.schema == by_source.schema
    assert sorted(found.collect()) == sorted(by_source.collect())
    assert offsets(found) == [*rows("alder", 35), *rows("birch", 10)]


@pytest.mark.parametrize(
    ("chosen", "expected", "sealed_files"),
    [
        ({"hosts": ["birch"]}, rows("birch", 10), 1),
        ({"since": at(12), "until": at(15)}, rows("alder", 12, 15), 1),
        ({"since": at(9), "hosts": ["alder"]}, rows("alder", 9, 35), 3),
        ({"since": at(25)}, rows("alder", 25, 35), 1),
        ({"until": at(1)}, [("alder", 0), ("birch", 0)], 2),
        ({"since": at(100).replace(tzinfo=None)}, [], 0),
    ],
)
def test_times_and_hosts_skip_files(
    spark: SparkSession,
    recorded: Path,
    chosen: dict[str, Any],
    expected: list[tuple[str, int]],
    sealed_files: int,
) -> None:
    found = read(spark, str(recorded), **chosen)
    assert offsets(found) == expected
    assert len(found.inputFiles()) == sealed_files


def test_a_table_without_rows_has_its_columns(spark: SparkSession, recorded: Path) -> None:
    events = read(spark, str(recorded), "events")
    assert events.count() == 0
    assert "fields" in events.columns
