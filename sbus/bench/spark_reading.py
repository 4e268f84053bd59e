"""How fast Spark reads a recording, beside its own scan of the same Parquet files.

All readers answer a question in turn, several times. Times are medians; the CPU time is that of
Spark's Java and Python processes together.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from sbus.bench import proc
from sbus.bench.report import Result
from sbus.bench.servers import RunSettings
from sbus.pipeline.jobs.traffic import traffic
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


class Times(NamedTuple):
    """Of a question."""

    seconds: float
    cpu_seconds: float


def measure(run: RunSettings, rows: int) -> Result:
    """Ask questions about a recording of so many rows."""
    _record(run.directory, rows)
    spark = spark_session()
    last = _FIRST + timedelta(seconds=rows * 0.99 / ROWS_PER_SECOND)
    questions: dict[str, Callable[[Reader], object]] = {
        "count": lambda reader: reader(None).count(),
        "count by key": lambda reader: reader(None).groupBy("key").count().collect(),
        "count of the last 1 %": lambda reader: reader(last).count(),
        "all columns": lambda reader: reader(None).write.format("noop").mode("overwrite").save(),
        "job traffic": lambda reader: traffic(reader(None)).collect(),
    }
    readers = _readers(spark, run.directory)
    measured: dict[str, dict[str, list[Times]]] = {
        question: {name: [] for name in readers} for question in questions
    }
    for question, ask in questions.items():
        for _ in range(REPEATS):
            for name, reader in readers.items():
                measured[question][name].append(_times(partial(ask, reader)))
        run.progress(question)
    spark.stop()
    return Result(
        name="spark",
        settings={"rows": rows},
        columns=("question", *(f"{name} {what}" for name in readers for what in ("s", "CPU s"))),
        rows=[(question, *_shown(found.values())) for question, found in measured.items()],
        samples=measured,
    )


def _times(ask: Callable[[], object]) -> Times:
    cpu_seconds, begun = _cpu_seconds(), time.monotonic()
    ask()
    return Times(time.monotonic() - begun, _cpu_seconds() - cpu_seconds)


def _cpu_seconds() -> float:
    """Of this process and its descendants, with those that have ended."""
    tree = proc.process_tree(os.getpid())
    stats = [proc.read_of_process(pid, "stat").rpartition(")")[2].split() for pid in tree]
    return sum(int(ticks) for stat in stats for ticks in stat[11:15]) / os.sysconf("SC_CLK_TCK")


def _shown(found: Iterable[list[Times]]) -> Iterator[str]:
    """The medians, and how many times as much as Spark's own scan takes."""
    first: Times | None = None
    for times in found:
        median = Times(*map(statistics.median, zip(*times[1:], strict=True)))
        first = first or median
        for seconds, own in zip(median, first, strict=True):
            yield f"{seconds:.2f}" if median is first else f"{seconds:.2f} ({seconds / own:.1f} x)"


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
