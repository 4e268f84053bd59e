"""The recording's tables as streaming tables; each run appends what has been recorded since.

They are copies, so they keep rows that the recorder deletes (`--retain-days`).
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F


def recorded(table: str) -> DataFrame:
    spark = SparkSession.active()
    path = spark.conf.get("spark.sbus.recording")
    source = spark.readStream.format("sbus").options(path=path, table=table)
    rows = source.option("startingOffsets", "earliest").load()
    return rows.withColumn("date", F.to_date("timestamp"))


@dp.table(partition_cols=["date", "host"], comment="What crossed the bus; GAP: what was missed")
def messages() -> DataFrame:
    return recorded("messages")


@dp.table(partition_cols=["date", "host"], comment="A client's counters, every few seconds")
def clients() -> DataFrame:
    return recorded("clients")


@dp.table(partition_cols=["date", "host"], comment="What happened to clients and workers")
def events() -> DataFrame:
    return recorded("events")
