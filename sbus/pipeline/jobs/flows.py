"""Who sends what to whom?

Who sent a message is recorded with it. Who received it is not; what each client subscribed to is,
among the events, so whom a key leads to can be told from the patterns. That is who asked for it
while it was recorded, whether or not it had asked by then, and it leaves out who had asked before
the recording began, and secret messages.

Patterns are compared as text. One whose `*` follows half a character matches nothing here.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from sbus.pipeline.jobs import columns

SUBSCRIBED_EVENT = "client-subscribed"
KEYS_MAX = 2_000
"""Of each host the busiest keys; every one of them is compared with every pattern."""
PATTERNS_MAX = 2_000


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
    """host, prefix, uid, program, clients, deliveries: how many messages below the prefix a program
    of a user asked for, counted once for each of its clients that did; the most first."""
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
        .agg(
            F.count_distinct(*who).alias("clients"),
            F.sum("messages").alias("deliveries"),
        )
        .orderBy(F.desc("deliveries"), "prefix", "host", "uid", "program")
    )


def _expression(pattern: Column, separator: str) -> Column:
    """The regular expression of the keys that the pattern matches."""
    literal = F.regexp_replace(pattern, r"([\\.\[\]{}()+?^$|])", r"\\$1")
    segments = F.regexp_replace(literal, r"\*+", f"[^{separator}]*")
    below = F.when((pattern == "") | pattern.endswith(separator), ".*").otherwise("")
    return F.concat(F.lit("^(?s:"), segments, below, F.lit(")$"))
