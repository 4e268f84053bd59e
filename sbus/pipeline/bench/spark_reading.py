"""How fast Spark reads a recording, and how old a message is when a stream has it.

It prints figures and judges nothing.
"""

import os
import statistics
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from sbus.pipeline.spark.listener import LiveRow, live_batch
from sbus.pipeline.spark.session import spark_session
from sbus.pipeline.store.row_batches import RecorderIdentity
from sbus.pipeline.store.schemas import MESSAGE
from sbus.pipeline.store.sealing import Sealer
from sbus.pipeline.store.writer import RecordingWriter

ROWS = 1_000_000
PAYLOAD = bytes(100)
FLUSH_ROWS = 10_000
KEYS = 1_000
REPEATS = 5
"""The first is for Java to warm up."""
STREAM_SECONDS = 20.0
STREAM_RATE = 5_000
FLUSH_SECONDS = 0.1
_IDENTITY = RecorderIdentity.of("bench", "/run/sbus.socket")


def measure(directory: Path) -> None:
    """Print how fast Spark reads recordings made in `directory`."""
    spark = spark_session(master="local[1]")
    _measure_batch(spark, directory / "batch")
    _measure_stream(spark, directory / "stream")
    spark.stop()


def _measure_batch(spark: SparkSession, directory: Path) -> None:
    _record(directory, ROWS)
    read = spark.read.format("sbus")
    few = spark.read.format("sbus").schema("key STRING, value BINARY, timestamp TIMESTAMP")
    for kind in ("segments", "Parquet"):
        _show(f"{kind}, all columns", read.load(str(directory)))
        _show(f"{kind}, three columns", few.load(str(directory)))
        filtered = spark.read.format("sbus").option("subscribe", "svc/1*/state")
        _show(f"{kind}, all columns, a tenth of the keys", filtered.load(str(directory)))
        with RecordingWriter(directory, _IDENTITY) as writer:
            Sealer(directory, writer.recorder).seal()


def _record(directory: Path, count: int) -> None:
    with RecordingWriter(directory, _IDENTITY) as writer:
        for first in range(0, count, FLUSH_ROWS):
            _append(writer, first, FLUSH_ROWS)


def _append(writer: RecordingWriter, first: int, count: int) -> None:
    now_us = time.time_ns() // 1000
    rows = [
        LiveRow(f"svc/{number % KEYS}/state", PAYLOAD, MESSAGE, None, now_us)
        for number in range(first, first + count)
    ]
    writer.tables["messages"].append(live_batch(rows, first, writer.identity))


def _show(what: str, frame: DataFrame) -> None:
    """The rows per second of one task: the best, and the median."""
    rates = []
    for _ in range(REPEATS):
        begun = time.monotonic()
        frame.write.format("noop").mode("overwrite").save()
        rates.append(ROWS / (time.monotonic() - begun))
    best, middle = max(rates), statistics.median(rates[1:])
    load = os.getloadavg()[0]
    print(f"{what}: {best:,.0f} rows/s at best, median {middle:,.0f} (load {load:.1f})", flush=True)


def _measure_stream(spark: SparkSession, directory: Path) -> None:
    """A row's age is the time from its timestamp until the sink has it, in seconds."""
    ages: list[float] = []

    def sink(batch: DataFrame, _: int) -> None:
        stamps = [row.us for row in batch.selectExpr("unix_micros(timestamp) us").collect()]
        now_us = time.time_ns() // 1000
        ages.extend((now_us - stamp) / 1e6 for stamp in stamps)

    with RecordingWriter(directory, _IDENTITY) as writer:
        frame = spark.readStream.format("sbus").option("startingOffsets", "earliest")
        query = frame.load(str(directory)).writeStream.foreachBatch(sink).start()
        sent = 0
        begun = time.monotonic()
        while (passed := time.monotonic() - begun) < STREAM_SECONDS:
            time.sleep(FLUSH_SECONDS)
            due = int((passed + FLUSH_SECONDS) * STREAM_RATE) - sent
            _append(writer, sent, due)
            sent += due
        query.processAllAvailable()
        query.stop()
    # The rows that waited while Java was warming up do not count.
    settled = sorted(ages[len(ages) // 3 :])
    print(
        f"stream, {STREAM_RATE} messages/s: {len(ages)} of {sent} rows, age "
        f"{settled[len(settled) // 2]:.2f} s at the median, "
        f"{settled[len(settled) * 99 // 100]:.2f} s at the 99th percentile "
        f"(load {os.getloadavg()[0]:.1f})"
    )
