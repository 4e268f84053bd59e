"""What the report keeps in memory while its jobs run, and what it shows of a few rows."""

import os
import re

from pyspark.sql import DataFrame, SparkSession

from sbus.pipeline.report.facts import Scope, gather
from sbus.pipeline.report.page import render
from sbus.pipeline.spark.selection import Table
from sbus.pipeline.store.schemas import CLIENTS, EVENTS
from tests.support.job_rows import SECOND_US, T0, frame, message, snapshot

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


def test_probes_are_not_among_what_nobody_received_and_no_two_columns_have_one_name(
    spark: SparkSession,
) -> None:
    own = {"recorder": "r1", "host": "h", "timestamp": T0, "uid": 7, "pid": 1, "program": "p"}
    rows = [
        message(key, b"1", **own, client=1, offset=offset, recipients=recipients)
        for offset, (key, recipients) in enumerate(
            [(b"sbus/probe/r1", 0), (b"sbus/probe/other", 0), (b"heard/by", 2), (b"un/heard", 0)]
        )
    ]
    tables = {
        "messages": frame(spark, rows),
        "clients": frame(spark, [snapshot(0, host="h", backlog=5)], CLIENTS),
        "events": frame(spark, [], EVENTS),
    }

    def read(name: Table) -> DataFrame:
        return tables[name]

    try:
        facts = gather(read, Scope())
    finally:
        spark.catalog.clearCache()
    assert [row["prefix"] for row in facts.unheard] == ["sbus/probe", "un/heard"]
    assert [row["unheard"] for row in facts.unheard] == [1, 1], "a probe of others is a message"
    assert {row["recipients"]: row["messages"] for row in facts.fan_out} == {0: 2, 2: 1}
    heads = re.findall("<thead><tr>(.*?)</tr></thead>", render(facts, title="t"))
    assert len(heads) >= 5
    for head in heads:
        names = re.findall("<th[^>]*>(.*?)</th>", head)
        assert len(names) == len(set(names)), names
