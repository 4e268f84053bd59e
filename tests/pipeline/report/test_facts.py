"""What the report keeps in memory while its jobs run, and what it shows of a few rows."""

import os
import re

from pyspark.sql import DataFrame, SparkSession

from sbus.pipeline.report.facts import Scope, gather
from sbus.pipeline.report.page import render
from sbus.pipeline.spark.selection import Table
from sbus.pipeline.store.schemas import CLIENTS, EVENTS
from tests.support.job_rows import T0, Row, frame, message, snapshot

MESSAGES = 100
PAYLOAD_BYTES = 50_000


def cached_bytes(spark: SparkSession) -> int:
    found = spark.sparkContext._jsc.sc().getRDDStorageInfo()
    return sum(each.memSize() + each.diskSize() for each in found)


def test_a_report_keeps_no_payloads_and_tells_its_probes_from_messages(spark: SparkSession) -> None:
    """One report for all, since each takes seconds."""
    own: Row = {"recorder": "r1", "host": "h", "uid": 7, "pid": 1, "program": "p", "client": 1}
    sent = b"%d" % (T0 - 2_000)
    rows = [
        message(key, value, **own, offset=offset, timestamp=T0, recipients=recipients)
        for offset, (key, value, recipients) in enumerate(
            [
                (b"sbus/probe/r1", sent, 0),
                (b"sbus/probe/other", b"1", 0),
                (b"un/heard", b"1", 0),
                *[(b"heard/by", os.urandom(PAYLOAD_BYTES), 2) for _ in range(MESSAGES)],
            ]
        )
    ]
    tables = {
        "messages": frame(spark, rows),
        "clients": frame(spark, [snapshot(0, host="h", backlog=5)], CLIENTS),
        "events": frame(spark, [], EVENTS),
    }

    def read(name: Table) -> DataFrame:
        return tables[name]

    before = cached_bytes(spark)
    try:
        facts = gather(read, Scope())
        kept = cached_bytes(spark) - before
    finally:
        spark.catalog.clearCache()
    assert 0 < kept < MESSAGES * PAYLOAD_BYTES // 10, "payloads are not kept"
    assert facts.summary["bytes"] == MESSAGES * PAYLOAD_BYTES + len(sent) + 2
    assert [row["max_ms"] for row in facts.latency] == [2.0], "but those of probes are"
    assert [row["prefix"] for row in facts.unheard] == ["sbus/probe", "un/heard"]
    assert [row["unheard"] for row in facts.unheard] == [1, 1], "a probe of others is a message"
    assert {row["recipients"]: row["messages"] for row in facts.fan_out} == {0: 2, 2: MESSAGES}
    heads = re.findall("<thead><tr>(.*?)</tr></thead>", render(facts, title="t"))
    assert len(heads) >= 5
    for head in heads:
        names = re.findall("<th[^>]*>(.*?)</th>", head)
        assert len(names) == len(set(names)), names
