"""How many clients receive a message, and which messages does nobody receive?

The number of recipients is null if the recorder was not an administrator; such messages are counted
as unknown.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sbus.pipeline.jobs import columns


def fan_out(messages: DataFrame) -> DataFrame:
    """recipients (null: unknown), messages: how many messages had that many recipients."""
    return (
        messages.where(columns.is_message())
        .groupBy("recipients")
        .agg(F.count("*").alias("messages"))
        .orderBy(F.asc_nulls_last("recipients"))
    )


def deliveries(
    messages: DataFrame, *, depth: int = 2, separator: str = columns.SEPARATOR
) -> DataFrame:
    """prefix, messages, deliveries, delivered_bytes, recipients_mean, recipients_max, unheard
    (messages without a recipient), unknown (messages whose recipients are unknown, which only
    `messages` includes); most deliveries first."""
    recipients = F.col("recipients")
    return (
        messages.where(columns.is_message())
        .groupBy(columns.prefix(depth, separator).alias("prefix"))
        .agg(
            F.count("*").alias("messages"),
            F.coalesce(F.sum(recipients), F.lit(0)).alias("deliveries"),
            F.coalesce(F.sum(recipients * columns.payload_bytes()), F.lit(0)).alias(
                "delivered_bytes"
            ),
            F.avg(recipients).alias("recipients_mean"),
            F.max(recipients).alias("recipients_max"),
            F.count_if(recipients == 0).alias("unheard"),
            F.count_if(recipients.isNull()).alias("unknown"),
        )
        .orderBy(F.desc("deliveries"), F.desc("messages"), "prefix")
    )
