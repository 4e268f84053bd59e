"""How fast Spark reads a recording, and how old a message is when a stream has it.

    python -m sbus.pipeline.spark.bench [DIRECTORY]

Makes recordings in DIRECTORY (a temporary one, if not given) and prints figures; nothing is judged.
"""

import os
import statistics
import tempfile
import threading
import time
from pathlib import Path

import click
from pyspark.sql import DataFrame, SparkSession

from sbus.pipeline.housekeeping import seal
from sbus.pipeline.schemas import MESSAGE
from sbus.pipeline.session import spark_session
from sbus.pipeline.spark.live_rows import LiveRow, batch_of
from sbus.pipeline.store import Origin, Store

ROWS = 1_000_000
PAYLOAD = bytes(100)
FLUSH_ROWS = 10_000
KEYS = 1_000
REPEATS = 5
"""The first of them is Java's to warm up."""
STREAM_SECONDS = 20.0
STREAM_RATE = 5_000
FLUSH_SECONDS = 0.1
_ORIGIN = Origin.of("bench", "/run/sbus.socket")


@click.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False), required=False)
def main(directory: Path | None) -> None:
    """Print how fast Spark reads recordings made in DIRECTORY, or in a temporary one."""
    with tempfile.TemporaryDirectory() as temporary:
        directory = directory or Path(temporary)
        spark = spark_session(master="local[1]")
        measure_batch(spark, directory / "batch")
        measure_stream(spark, directory / "stream")
        spark.stop()


def measure_batch(spark: SparkSession, directory: Path) -> None:
    record(directory, ROWS)
    read = spark.read.format("sbus")
    few = spark.read.format("sbus").schema("key STRING, value BINARY, timestamp TIMESTAMP")
    kinds = ("segments", "Parquet")
    for kind in kinds:
        show(f"{kind}, all columns", read.load(str(directory)))
        show(f"{kind}, three columns", few.load(str(directory)))
        filtered = spark.read.format("sbus").option("subscribe", "svc/1*/state")
        show(f"{kind}, all columns, a tenth of the keys", filtered.load(str(directory)))
        if kind != kinds[-1]:
            seal(directory, _ORIGIN.recorder, threading.Event())


def record(directory: Path, count: int) -> None:
    with Store(directory, _ORIGIN) as store:
        for first in range(0, count, FLUSH_ROWS):
            append(store, first, FLUSH_ROWS)


def append(store: Store, first: int, count: int) -> None:
    now_us = time.time_ns() // 1000
    rows = [
        LiveRow(f"svc/{number % KEYS}/state", PAYLOAD, MESSAGE, None, now_us)
        for number in range(first, first + count)
    ]
    store.tables["messages"].append(batch_of(rows, first, _ORIGIN), now_us, now_us)


def show(what: str, frame: DataFrame) -> None:
    """Rows of the recording per second, of one task; the best, and the one in the middle."""
    rates = []
    for _ in range(REPEATS):
        begun = time.monotonic()
        frame.write.format("noop").mode("overwrite").save()
        rates.append(ROWS / (time.monotonic() - begun))
    best, middle = max(rates), statistics.median(rates[1:])
    load = os.getloadavg()[0]
    print(f"{what}: {best:,.0f} rows/s at best, median {middle:,.0f} (load {load:.1f})", flush=True)


def measure_stream(spark: SparkSession, directory: Path) -> None:
    """Ages in seconds: from the recorder's time stamp until the sink has the row."""
    ages: list[float] = []

    def sink(batch: DataFrame, _: int) -> None:
        stamps = [row.us for row in batch.selectExpr("unix_micros(timestamp) us").collect()]
        now_us = time.time_ns() // 1000
        ages.extend((now_us - stamp) / 1e6 for stamp in stamps)

    with Store(directory, _ORIGIN) as store:
        frame = spark.readStream.format("sbus").option("startingOffsets", "earliest")
        query = frame.load(str(directory)).writeStream.foreachBatch(sink).start()
        sent = 0
        begun = time.monotonic()
        while (passed := time.monotonic() - begun) < STREAM_SECONDS:
            due = int(passed * STREAM_RATE) - sent
            append(store, sent, due)
            sent += due
            time.sleep(FLUSH_SECONDS)
        query.processAllAvailable()
        query.stop()
    # What waited while Java was warming up says nothing about the stream.
    settled = sorted(ages[len(ages) // 3 :])
    print(
        f"stream, {STREAM_RATE} messages/s: {len(ages)} of {sent} rows, age "
        f"{settled[len(settled) // 2]:.2f} s at the median, "
        f"{settled[len(settled) * 99 // 100]:.2f} s at the 99th percentile "
        f"(load {os.getloadavg()[0]:.1f})"
    )


if __name__ == "__main__":
    main()
