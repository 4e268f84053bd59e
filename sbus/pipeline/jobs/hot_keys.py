"""Which keys carry the most?

Keys are text as `sbus.protocol.text.to_text` writes it, so two keys never look the same.
"""

from typing import Literal

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sbus.pipeline.jobs import columns


def hot_keys(
    messages: DataFrame, *, top: int = 20, by: Literal["messages", "bytes"] = "messages"
) -> DataFrame:
    """key, messages, bytes, publishers (null: unknown), first, last: the `top` keys, the largest
    first."""
    return (
        messages.where(columns.is_message())
        .groupBy("key")
        .agg(
            F.count("*").alias("messages"),
            F.sum(columns.payload_bytes()).alias("bytes"),
            columns.publishers().alias("publishers"),
            F.min("timestamp").alias("first"),
            F.max("timestamp").alias("last"),
        )
        .orderBy(F.desc(by), "key")
        .limit(top)
    )
