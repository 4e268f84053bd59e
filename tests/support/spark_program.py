"""A program with a session of its own: streams a recording to files, and can be killed.

    python -m tests.support.spark_program MASTER RECORDING OUT CHECKPOINT always|once

`once` ends when it has streamed what is there. It prints as JSON its Java, the rows of the files,
and how many rows and tasks a batch read has.
"""

import json
import sys

JAVA_FOR_TESTS = ("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
"""For programs that run for seconds: optimising compilers cost them more than they gain."""


def main(master: str, recording: str, out: str, checkpoint: str, how: str) -> None:
    from sbus.pipeline.spark.session import spark_session

    spark = spark_session(master=master, conf={"spark.sql.shuffle.partitions": "2"})
    stream = spark.readStream.format("sbus").option("startingOffsets", "earliest").load(recording)
    writer = stream.writeStream.format("parquet").options(path=out, checkpointLocation=checkpoint)
    if how == "always":
        writer.trigger(processingTime="50 milliseconds").start().awaitTermination()
    writer.trigger(availableNow=True).start().awaitTermination()
    batch = spark.read.format("sbus").option("minPartitions", "2").load(recording)
    streamed = spark.read.parquet(out).selectExpr("offset", "string(value) AS value")
    printed = {
        "java": spark._jvm.System.getProperty("java.home"),  # type: ignore[union-attr]
        "streamed": [(row.offset, row.value) for row in streamed.collect()],
        "rows": batch.count(),
        "tasks": batch.rdd.getNumPartitions(),
    }
    print(json.dumps(printed))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
