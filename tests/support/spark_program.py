"""A program with a session of its own: streams a recording to files until it is killed.

It is `python -m tests.support.spark_program MASTER RECORDING OUT CHECKPOINT`.
"""

import os
import sys
from typing import TYPE_CHECKING

from tests.support.bus import PROJECT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

PROGRAM = (sys.executable, "-m", "tests.support.spark_program")
JAVA_FOR_TESTS = ("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
"""For programs that run for seconds: optimising compilers cost them more than they gain."""
INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""For a few rows: compiling a plan costs more than interpreting it. The demo's report compiles."""


def program_environment() -> dict[str, str]:
    """In which a program of tests with a session of its own runs, in any directory."""
    return {**os.environ, "PYTHONPATH": str(PROJECT), JAVA_FOR_TESTS[0]: JAVA_FOR_TESTS[1]}


def writer(spark: "SparkSession", recording: str, out: str, checkpoint: str) -> "DataStreamWriter":
    stream = spark.readStream.format("sbus").option("startingOffsets", "earliest").load(recording)
    return stream.writeStream.format("parquet").options(path=out, checkpointLocation=checkpoint)


def stream_once(spark: "SparkSession", recording: str, out: str, checkpoint: str) -> None:
    """Stream what is there."""
    query = writer(spark, recording, out, checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()


def streamed(spark: "SparkSession", out: str) -> list[tuple[int, str]]:
    """Offset and value of each row of the files."""
    rows = spark.read.parquet(out).selectExpr("offset", "string(value) AS value")
    return [(row.offset, row.value) for row in rows.collect()]


def main(master: str, recording: str, out: str, checkpoint: str) -> None:
    from sbus.pipeline.spark.session import spark_session

    spark = spark_session(master=master, conf={**INTERPRETED, "spark.sql.shuffle.partitions": "2"})
    endless = writer(spark, recording, out, checkpoint)
    endless.trigger(processingTime="50 milliseconds").start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
