"""How fast Spark reads a recording, beside its own scan of the same Parquet files."""

import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from sbus.bench.report import Result
from sbus.bench.servers import RunSettings
from sbus.pipeline.spark.selection import read
from sbus.pipeline.spark.session import spark_session
from sbus.pipeline.store.row_batches import RecorderIdentity, message_batch
from sbus.pipeline.store.sealing import Sealer
from sbus.pipeline.store.writer import RecordingWriter, Rolling

BATCH_ROWS = 10_000
KEYS = 1_000
ROWS_PER_SECOND = 1_000
REPEATS = 4
"""The first is for Java to warm up."""
_IDENTITY = RecorderIdentity.of("bench", "/run/sbus.socket")
_ROLLING = Rolling(bytes_max=128 * 1024 * 1024, seconds_max=3600.0)
_FIRST = datetime(2026, 3, 1, 12, tzinfo=UTC)

Reader = Callable[[datetime | None], DataFrame]
"""The rows from a time on, or all."""


def measure(run: RunSettings, rows: int) -> Result:
    """Ask four questions about a recording of so many rows."""
    _record(run.directory, rows)
    spark = spark_session()
    last = _FIRST + timedelta(seconds=rows * 0.99 / ROWS_PER_SECOND)
    questions: dict[str, Callable[[Reader], object]] = {
        "count": lambda reader: reader(None).count(),
        "count by key": lambda reader: reader(None).groupBy("key").count().collect(),
        "count of the last 1 %": lambda reader: reader(last).count(),
        "all columns": lambda reader: reader(None).write.format("noop").mode("overwrite").save(),
    }
    readers = _readers(spark, run.directory)
    seconds: dict[str, dict[str, list[float]]] = {
        question: {name: [] for name in readers} for question in questions
    }
    for question, ask in questions.items():
        for _ in range(REPEATS):
            for name, reader in readers.items():
                begun = time.monotonic()
                ask(reader)
                seconds[question][name].append(time.monotonic() - begun)
        run.progress(question)
    spark.stop()
    return Result(
        name="spark",
        settings={"rows": rows},
        columns=("question", *readers),
        rows=[
            (question, *(f"{statistics.median(s[1:]):.2f} s" for s in found.values()))
            for question, found in seconds.items()
        ],
        samples=seconds,
    )


def _readers(spark: SparkSession, directory: Path) -> dict[str, Reader]:
    def parquet(since: datetime | None) -> DataFrame:
        found = spark.read.parquet(str(directory / "messages"))
        return found if since is None else found.where(found["timestamp"] >= since)

    def source(since: datetime | None) -> DataFrame:
        bound = {} if since is None else {"startingTimestamp": since.isoformat()}
        return spark.read.format("sbus").options(**bound).load(str(directory))

    return {
        "Parquet": parquet,
        "read": lambda since: read(spark, str(directory), since=since),
        'format("sbus")': source,
    }


def _record(directory: Path, rows: int) -> None:
    with RecordingWriter(directory, _IDENTITY) as writer:
        for first in range(0, rows, BATCH_ROWS):
            numbers = range(first, min(first + BATCH_ROWS, rows))
            columns = {
                "key": pa.array([f"svc/{number % KEYS}/state" for number in numbers]),
                "value": pa.array([b"%0100d" % number for number in numbers]),
            }
            age_us = np.array(numbers) * (1_000_000 // ROWS_PER_SECOND)
            stamps_us = round(_FIRST.timestamp() * 1e6) + age_us
            batch = message_batch(first, stamps_us, columns, {})
            writer.tables["messages"].append(batch, _ROLLING)
        writer.roll()
        Sealer(directory, writer.recorder).seal()
