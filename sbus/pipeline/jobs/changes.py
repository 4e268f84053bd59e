"""What is new, gone, more or less than in an earlier recording of the same bus?"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sbus.pipeline.jobs import columns


def changes(
    messages: DataFrame, earlier: DataFrame, *by: str, seconds: float, earlier_seconds: float
) -> DataFrame:
    """The columns `by`, before, now (messages a second; 0: none), for each group of messages in
    recordings of these lengths. The largest differences first."""
    both = messages.select(*by, "kind", F.lit(True).alias("is_now")).unionByName(
        earlier.select(*by, "kind", F.lit(False).alias("is_now"))
    )
    before = F.count_if(~F.col("is_now")) / earlier_seconds
    now = F.count_if("is_now") / seconds
    return (
        both.where(columns.is_message())
        .groupBy(*by)
        .agg(before.alias("before"), now.alias("now"))
        .orderBy(F.desc(F.abs(F.col("now") - F.col("before"))), *by)
    )
