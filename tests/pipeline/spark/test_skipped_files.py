"""A question about an hour of a month reads few of its files: the others can be missing."""

import shutil
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from sbus.pipeline.spark.options import source_options
from sbus.pipeline.spark.readers import BatchReader, RecordingPartition
from sbus.pipeline.spark.selection import read
from sbus.pipeline.store import reader
from sbus.pipeline.store.schemas import MESSAGES
from sbus.pipeline.store.stored_file import Piece
from tests.support.written import NOON, NOON_US, sealed_files, sealer, write_segments

MINUTE_US = 60_000_000
DAY = 24 * 60
PAST_DAYS = 29
FILES = PAST_DAYS + 24
"""A file for each day, as compaction leaves it, and for each hour of the last day."""
TOUCHED_SHARE_MAX = 0.05


def minutes(first: int, end: int) -> range:
    """The times of a message a minute."""
    return range(NOON_US + first * MINUTE_US, NOON_US + end * MINUTE_US, MINUTE_US)


@pytest.fixture(scope="module")
def month(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("month") / "recording"
    last_day = range(DAY // 2 + (PAST_DAYS - 1) * DAY, DAY // 2 + PAST_DAYS * DAY, 60)
    hours = [minutes(first, first + 60) for first in last_day]
    write_segments(directory, minutes(0, last_day.start), *hours)
    one = sealer(directory)
    one.seal()
    one.delete_sealed(0)
    assert len(sealed_files(directory)) == FILES
    return directory


@pytest.fixture(
    params=[9 * DAY + 120, 11 * DAY + 12 * 60 - 30, 29 * DAY - 120],
    ids=["past", "over midnight", "last day"],
)
def hour(request: pytest.FixtureRequest) -> tuple[datetime, datetime]:
    since = NOON + timedelta(minutes=request.param)
    return since, since + timedelta(hours=1)


def copy_of(month: Path, touched: set[str], directory: Path) -> str:
    """Without the sealed files that are not touched."""
    copied = directory / "recording"
    shutil.copytree(month, copied)
    assert 0 < len(touched) <= TOUCHED_SHARE_MAX * FILES
    for file in sealed_files(copied):
        if str(month / Path(file.path).relative_to(copied)) not in touched:
            Path(file.path).unlink()
    return str(copied)


def test_of_a_table_at_a_uri_few_files_are_read(
    spark: SparkSession, month: Path, tmp_path: Path, hour: tuple[datetime, datetime]
) -> None:
    since, until = hour
    named = read(spark, str(month), since=since, until=until).inputFiles()
    left = copy_of(month, {path.removeprefix("file://") for path in named}, tmp_path)
    found = read(spark, f"file://{left}", since=since, until=until)
    assert found.select("value").distinct().count() == 60


def test_the_source_plans_few_files(
    spark: SparkSession,
    month: Path,
    tmp_path: Path,
    hour: tuple[datetime, datetime],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those where it looks for the offsets of the two times are among them."""
    touched = set()
    read_parquet = reader._read_parquet

    def note(piece: Piece, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        touched.add(piece.file.path)
        return read_parquet(piece, columns)

    monkeypatch.setattr(reader, "_read_parquet", note)
    since, until = (moment.isoformat() for moment in hour)
    options = {"startingTimestamp": since, "endingTimestamp": until}
    planned = BatchReader(source_options({"path": str(month), **options}), MESSAGES).partitions()
    for partition in planned:
        assert isinstance(partition, RecordingPartition)
        touched.update(piece.file.path for piece in partition.pieces)
    left = copy_of(month, touched, tmp_path)
    found = spark.read.format("sbus").options(**options).load(left)
    assert found.select("value").distinct().count() == 60


def test_the_table_tells_other_programs_what_to_skip(
    month: Path, hour: tuple[datetime, datetime]
) -> None:
    since, until = (pa.scalar(moment) for moment in hour)
    when = pyarrow.dataset.field("timestamp")
    dataset = DeltaTable(str(month / "messages")).to_pyarrow_dataset()
    selected = (when >= since) & (when < until)
    assert len(list(dataset.get_fragments(selected))) <= TOUCHED_SHARE_MAX * FILES
    assert dataset.count_rows(filter=selected) == 60
