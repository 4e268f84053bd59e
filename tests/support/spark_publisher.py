"""A program with a session of its own: publishes a stream of a recording, and can be killed.

    python -m tests.support.spark_publisher RECORDING SOCKET CHECKPOINT BATCH_ROWS

It ends when everything that was recorded is published.
"""

import sys
from typing import TYPE_CHECKING

from tests.support.spark_program import INTERPRETED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def publish(
    spark: "SparkSession", recording: str, socket: str, checkpoint: str, batch_rows: str
) -> None:
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": batch_rows}
    stream = spark.readStream.format("sbus").options(**options).load(recording)
    sink = stream.writeStream.format("sbus").option("socket", socket)
    query = sink.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()


def main(*arguments: str) -> None:
    from sbus.pipeline.spark.session import spark_session

    spark = spark_session(master="local[2]", conf=INTERPRETED)
    publish(spark, *arguments)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
