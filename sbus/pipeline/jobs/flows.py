"""Who sends what to whom, and to how many?

A message is recorded with its publisher, but not with its recipients. The events tell which client
subscribed to which pattern, and so who asked for a key: at any time of the recording, even after
the message, but not before the recording began. Secret messages are left out. The number of
recipients is null if the recorder was not an administrator.

Patterns are compared as text. One whose `*` follows a part of a character matches nothing here.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from sbus.pipeline.jobs import columns

SUBSCRIBED_EVENT = "client-subscribed"
KEYS_MAX = 5_000
"""The busiest keys, of all hosts; each is compared with all patterns of its host."""
PATTERNS_MAX = 2_000
"""Of all hosts."""


def senders(
    messages: DataFrame, *, depth: int = 2, separator: str = columns.SEPARATOR
) -> DataFrame:
    """host, uid, program (null: unknown), prefix, messages, bytes; the most first."""
    return (
        messages.where(columns.is_message())
        .groupBy("host", "uid", "program", columns.prefix(depth, separator).alias("prefix"))
        .agg(F.count("*").alias("messages"), F.sum(columns.payload_bytes()).alias("bytes"))
        .orderBy(F.desc("messages"), "prefix", "host", "uid", "program")
    )


def receivers(
    messages: DataFrame, events: DataFrame, *, depth: int = 2, separator: str = columns.SEPARATOR
) -> DataFrame:
    """host, prefix, uid, program, clients, deliveries: how many messages below the prefix the
    clients of a user's program asked for, counted for each client; the most first."""
    keys = (
        messages.where(columns.is_message() & ~F.col("key").startswith("!"))
        .groupBy("host", "key")
        .agg(F.count("*").alias("messages"))
        .orderBy(F.desc("messages"), "key")
        .limit(KEYS_MAX)
        .withColumn("prefix", columns.prefix(depth, separator))
    )
    asked_for = (
        events.where(F.col("event") == SUBSCRIBED_EVENT)
        .select(
            *("host", "recorder", "client", "pid", "uid", "program"),
            F.get_json_object("fields", "$.pattern").alias("pattern"),
        )
        .where(F.col("pattern").isNotNull())
        .distinct()
        .limit(PATTERNS_MAX)
        .withColumn("expression", _expression(F.col("pattern"), separator))
    )
    matches = keys.join(F.broadcast(asked_for), "host").where(F.expr("key rlike expression"))
    who = ("recorder", "client", "pid")
    return (
        matches.dropDuplicates(["host", "key", *who])
        .groupBy("host", "prefix", "uid", "program")
        .agg(F.count_distinct(*who).alias("clients"), F.sum("messages").alias("deliveries"))
        .orderBy(F.desc("deliveries"), "prefix", "host", "uid", "program")
    )


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


def _expression(pattern: Column, separator: str) -> Column:
    """The regular expression for the keys that the pattern matches."""
    literal = F.regexp_replace(pattern, r"([\\.\[\]{}()+?^$|])", r"\\$1")
    segments = F.regexp_replace(literal, r"\*+", f"[^{separator}]*")
    below = F.when((pattern == "") | pattern.endswith(separator), ".*").otherwise("")
    return F.concat(F.lit("^(?s:"), segments, below, F.lit(")$"))
