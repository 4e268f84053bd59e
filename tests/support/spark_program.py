"""A program with a session of its own: streams a recording to files, and can be killed.

    python -m tests.support.spark_program MASTER RECORDING OUT CHECKPOINT always|once

`once` ends when it has streamed what is there, and prints as JSON what Java it ran on and how many
rows a batch read by two tasks has.
"""

import json
import sys

from sbus.pipeline.spark.session import spark_session


def main(master: str, recording: str, out: str, checkpoint: str, how: str) -> None:
    spark = spark_session(master=master, conf={"spark.sql.shuffle.partitions": "2"})
    stream = spark.readStream.format("sbus").option("startingOffsets", "earliest").load(recording)
    writer = stream.writeStream.format("parquet").options(path=out, checkpointLocation=checkpoint)
    if how == "always":
        writer.trigger(processingTime="50 milliseconds").start().awaitTermination()
    writer.trigger(availableNow=True).start().awaitTermination()
    batch = spark.read.format("sbus").option("minPartitions", "2").load(recording)
    java = spark._jvm.System.getProperty("java.home")  # type: ignore[union-attr]
    print(json.dumps({"java": java, "rows": batch.count(), "tasks": batch.rdd.getNumPartitions()}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
