"""What the report keeps in memory while its jobs run."""

import os

from pyspark.sql import DataFrame, SparkSession

from sbus.pipeline.report.facts import Scope, gather
from sbus.pipeline.spark.selection import Table
from sbus.pipeline.store.schemas import CLIENTS, EVENTS
from tests.support.job_rows import SECOND_US, T0, frame, message

MESSAGES = 100
PAYLOAD_BYTES = 50_000


def cached_bytes(spark: SparkSession) -> int:
    found = spark.sparkContext._jsc.sc().getRDDStorageInfo()
    return sum(each.memSize() + each.diskSize() for each in found)


def test_payloads_are_not_kept_but_those_of_probes_are(spark: SparkSession) -> None:
    rows = [
        message(
            b"k",
            os.urandom(PAYLOAD_BYTES),
            **{"recorder": "r1", "host": "h", "offset": n, "timestamp": T0 + n * SECOND_US},
        )
        for n in range(MESSAGES)
    ]
    sent = b"%d" % (T0 - 2_000)
    probe = {"recorder": "r1", "host": "h", "offset": MESSAGES, "timestamp": T0}
    rows.append(message(b"sbus/probe/r1", sent, **probe))
    tables = {
        "messages": frame(spark, rows),
        "clients": frame(spark, [], CLIENTS),
        "events": frame(spark, [], EVENTS),
    }

    def read(name: Table) -> DataFrame:
        return tables[name]

    before = cached_bytes(spark)
    try:
        facts = gather(read, Scope())
        assert cached_bytes(spark) - before < MESSAGES * PAYLOAD_BYTES // 10
    finally:
        spark.catalog.clearCache()
    assert facts.summary["bytes"] == MESSAGES * PAYLOAD_BYTES + len(sent)
    assert [row["max_ms"] for row in facts.latency] == [2.0]
