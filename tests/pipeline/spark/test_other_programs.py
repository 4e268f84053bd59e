"""DuckDB, Polars and deltalake read a recording that is recorded, sealed, compacted and vacuumed:
every sealed row once, as `format("sbus")` has it."""

import threading
from datetime import date
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from sbus.pipeline.store.compaction import compact
from sbus.pipeline.store.schemas import MESSAGES
from sbus.pipeline.store.sealed_table import SealedTable
from tests.support.delta_programs import PROGRAMS
from tests.support.small_recording import SmallRecorder, numbered
from tests.support.threads import meanwhile, wait_until

BATCH_ROWS = 40
SEALED_ROWS = 300


class BusyRecorder:
    """Records all the time, in a thread that runs `record`."""

    def __init__(self, recorder: SmallRecorder) -> None:
        self._recorder = recorder
        self._lock = threading.Lock()

    def record(self, stop: threading.Event) -> None:
        while not stop.wait(0.02):
            with self._lock:
                self._recorder.record(numbered(BATCH_ROWS, self._recorder.end))
                self._recorder.record_gap(None)

    def seal(self) -> int:
        """Seal at least `SEALED_ROWS` more rows; returns their end."""
        begin = self._recorder.end
        wait_until(lambda: self._recorder.end >= begin + SEALED_ROWS, "enough rows")
        with self._lock:
            self._recorder.roll()
            end = self._recorder.end
        self._recorder.seal()
        return end


def test_programs_that_read_delta_have_the_rows_that_spark_has(
    spark: SparkSession, tmp_path: Path
) -> None:
    def check(end: int) -> None:
        by_spark = in_order(spark.read.format("sbus").load(str(tmp_path)).toArrow())
        assert by_spark["offset"].to_pylist() == list(range(len(by_spark)))
        assert len(by_spark) > end, "some are not sealed"
        for program in PROGRAMS:
            found = in_order(program(str(tmp_path / "messages")))
            assert found.equals(by_spark.slice(0, end)), program.__name__

    with SmallRecorder(tmp_path) as recorder:
        busy = BusyRecorder(recorder)
        with meanwhile(busy.record):
            busy.seal()
            check(end := busy.seal())
            compact(SealedTable(str(tmp_path), "messages"), recorder.name, date.max)
            assert len(SealedTable(str(tmp_path), "messages").files()) == 1
            check(end)
            SealedTable(str(tmp_path), "messages").vacuum(0)
            assert len(list(tmp_path.rglob("*.parquet"))) == 1
            check(busy.seal())


def in_order(rows: pa.Table) -> pa.Table:
    """By their offsets, with the columns of `messages` and their types."""
    return rows.select(MESSAGES.names).sort_by("offset").cast(MESSAGES).combine_chunks()
