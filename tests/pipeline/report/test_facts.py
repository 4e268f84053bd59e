"""The report of ten busy minutes: each of its facts is what an oracle computes row by row, and the
page shows them. It takes seconds, so it is made once for all tests."""

import json
import os
import re
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

from sbus.pipeline.jobs.anomalies import WINDOWS_MIN
from sbus.pipeline.jobs.incidents import SCORE_MIN
from sbus.pipeline.report.facts import KEYS_MAX, PREFIXES_MAX, Facts, Row, Rows, Scope, gather
from sbus.pipeline.report.page import render
from tests.pipeline.jobs import oracles
from tests.support.job_results import keyed
from tests.support.job_rows import message, table
from tests.support.recordings import HOSTS, generate

MESSAGES = 20_000
SECONDS = 600
WINDOW_US = 5_000_000
"""Of which 120 fit into a plot."""
DEPTH = 2
LARGE, LARGE_BYTES = 100, 100_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Reported(NamedTuple):
    rows: list[oracles.Message]
    messages: pa.Table
    clients: Rows
    events: Rows
    facts: Facts
    kept_bytes: int
    """What is in memory afterwards."""


@pytest.fixture(scope="module")
def reported(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Reported:
    generated = generate(MESSAGES, seed=9, seconds=SECONDS)
    messages = pa.concat_tables([generated.messages, odd_ones(generated.messages)])
    tables = {"messages": messages, "clients": generated.clients, "events": generated.events}
    folder = tmp_path_factory.mktemp("recorded")
    for name, content in tables.items():
        pyarrow.parquet.write_table(content, folder / f"{name}.parquet")
    try:
        facts = gather(lambda name: spark.read.parquet(f"{folder}/{name}.parquet"), Scope())
        stored = spark.sparkContext._jsc.sc().getRDDStorageInfo()
        kept_bytes = sum(each.memSize() + each.diskSize() for each in stored)
    finally:
        spark.catalog.clearCache()
    others = generated.clients.to_pylist(), generated.events.to_pylist()
    return Reported(oracles.rows(messages), messages, *others, facts, kept_bytes)


def odd_ones(generated: pa.Table) -> pa.Table:
    """Behind the last message of a host: a probe of another recorder, and large messages."""
    own = generated.filter(pc.equal(generated["host"], HOSTS[0])).select(
        ["recorder", "incarnation", "host", "bus", "uid", "client", "pid", "program", "timestamp"]
    )
    who = own.slice(own.num_rows - 1).to_pylist()[0]
    who["timestamp"] = microseconds(who["timestamp"])
    added = [
        (b"sbus/probe/other", b"1", 0),
        *[(b"heard/by", os.urandom(LARGE_BYTES), 2) for _ in range(LARGE)],
    ]
    return table(
        [
            message(key, value, **who, offset=offset, recipients=recipients)
            for offset, (key, value, recipients) in enumerate(added, own.num_rows)
        ]
    )


def microseconds(when: datetime) -> int:
    return (when - EPOCH) // timedelta(microseconds=1)


def shown(rows: Rows, *names: str) -> list[tuple[Any, ...]]:
    """These columns, times in microseconds since 1970."""
    return [
        tuple(microseconds(it) if isinstance(it, datetime) else it for it in map(row.get, names))
        for row in rows
    ]


def without_probes(reported: Reported) -> list[oracles.Message]:
    return [row for row in reported.rows if row.key != f"sbus/probe/{row.recorder}"]


def test_no_payloads_are_kept(reported: Reported) -> None:
    assert 0 < reported.kept_bytes < LARGE * LARGE_BYTES // 2
    said = oracles.said(reported.rows)
    assert reported.facts.summary["bytes"] == sum(row.size for row in said)
    assert reported.facts.summary["messages"] == len(said)


def test_traffic(reported: Reported) -> None:
    facts = reported.facts
    assert facts.window_seconds == WINDOW_US / 1e6
    parts = oracles.traffic(reported.rows, DEPTH, WINDOW_US)
    sums: Counter[str] = Counter()
    for (_, prefix), (count, *_) in parts.items():
        sums[prefix] += count
    busiest = sorted(sums, key=lambda prefix: (-sums[prefix], prefix))[:PREFIXES_MAX]
    assert shown(facts.prefixes, "prefix", "messages") == [
        *((prefix, sums[prefix]) for prefix in busiest),
        (None, sums.total() - sum(sums[prefix] for prefix in busiest)),
    ]
    folded: Counter[Any] = Counter()
    for (start, prefix), (count, *_) in parts.items():
        folded[start, prefix if prefix in busiest else None] += count
    found = keyed(shown(facts.traffic, "start", "prefix", "messages"), 2)
    assert found == {key: (count,) for key, count in folded.items()}
    names = ("key", "messages", "bytes", "publishers", "first", "last")
    assert shown(facts.hot_keys, *names) == oracles.hot_keys(reported.rows, KEYS_MAX, 1)


def test_who_sends_what_to_whom(reported: Reported) -> None:
    found = shown(reported.facts.senders, "host", "uid", "program", "prefix", "messages")
    assert {row[:4]: row[4] for row in found} == oracles.senders(reported.rows, DEPTH)
    subscribed = [
        (row["host"], row["client"], row["uid"], row["program"], pattern)
        for row in reported.events
        if row["event"] == "client-subscribed"
        for pattern in [row["fields"].partition('"pattern": "')[2].partition('"')[0]]
    ]
    assert len(subscribed) == 20
    names = ("host", "prefix", "uid", "program", "clients", "deliveries")
    assert keyed(shown(reported.facts.receivers, *names), 4) == oracles.receivers(
        reported.rows, subscribed, DEPTH
    )


def test_only_the_probes_of_others_are_messages_that_were_heard_or_not(reported: Reported) -> None:
    others = without_probes(reported)
    found = dict(shown(reported.facts.fan_out, "recipients", "messages"))
    assert found == oracles.fan_out(others)
    unheard = {
        prefix: row[5] for prefix, row in oracles.deliveries(others, DEPTH).items() if row[5]
    }
    assert unheard["sbus/probe"] == 1
    assert shown(reported.facts.unheard, "prefix", "unheard") == sorted(
        unheard.items(), key=lambda item: (-item[1], item[0])
    )


def test_users(reported: Reported) -> None:
    names = ("delivered", "delivered_bytes", "discarded", "refused")
    by_user: dict[Any, Any] = defaultdict(Counter)
    programs = defaultdict(set)
    for grown in oracles.growth(reported.clients).values():
        last = grown["rows"][-1]
        user = last["host"], last["uid"]
        by_user[user].update({"measured": 1, **{name: grown[name] for name in names}})
        programs[user].add(last["program"])
    said = [row for row in oracles.said(reported.rows) if row.uid is not None]
    for row in said:
        by_user[row.host, row.uid].update(messages=1, bytes=row.size)
        programs[row.host, row.uid].add(row.program)
    columns = ("host", "uid", "programs", "measured", "messages", "bytes", *names)
    found = shown(reported.facts.users, *columns)
    assert keyed(found, 2) == {
        user: (
            sorted(programs[user]),
            *(sums[n] for n in ("measured", "messages", "bytes", *names)),
        )
        for user, sums in by_user.items()
    }
    assert sum(row[3] for row in found) == 28
    assert sum(row[4] for row in found) == len(said) >= MESSAGES


def test_slow_consumers(reported: Reported) -> None:
    expected = {}
    for (recorder, _, client, _), grown in oracles.growth(reported.clients).items():
        rows = grown["rows"]
        backlogs = [row["backlog"] for row in rows]
        stalled = [row["stalled"] for row in rows]
        if grown["discarded"] or any(backlogs) or any(stalled):
            points = [(row["timestamp"].timestamp(), row["backlog"]) for row in rows]
            expected[recorder, client] = (
                len(rows),
                grown["discarded"],
                max(backlogs),
                backlogs[-1],
                pytest.approx(oracles.slope(points), rel=1e-6, abs=1e-9),
                pytest.approx(sum(stalled) / len(stalled)),
            )
    names = ("recorder", "client", "snapshots", "discarded", "backlog_max", "backlog_last")
    found = shown(reported.facts.slow, *names, "backlog_growth", "stalled_share")
    assert keyed(found, 2) == expected
    assert len(found) == reported.facts.slow_count == 4


def test_latency(reported: Reported) -> None:
    expected = oracles.latency(reported.messages, WINDOW_US)
    names = ("recorder", "start", "probes", "unusable", "p50_ms", "p95_ms", "p99_ms", "max_ms")
    found = shown(reported.facts.latency, *names)
    assert keyed(found, 2) == {
        key: (
            probes,
            bad,
            *(pytest.approx(oracles.percentile(took, p)) for p in (0.5, 0.95, 0.99, 1.0)),
        )
        for key, (probes, bad, took) in expected.items()
    }
    assert sum(row[2] for row in found) == 2 * SECONDS
    histograms = [
        (row["recorder"], row["incarnation"], row["offset"], json.loads(row["fields"])["latency"])
        for row in reported.events
        if row["event"] == "stats"
    ]
    growth = oracles.broker_latency([(*at, latency["counts"]) for *at, latency in histograms])
    bounds: list[int | None] = [*histograms[0][3]["bounds_us"], None]
    deliveries: dict[str, dict[Any, int]] = defaultdict(dict)
    for recorder, bound, count in shown(
        reported.facts.broker_latency, "recorder", "bound_us", "deliveries"
    ):
        deliveries[recorder][bound] = count
    assert deliveries == {
        recorder: dict(zip(bounds, counts, strict=True)) for recorder, counts in growth.items()
    }


def test_incidents(reported: Reported) -> None:
    expected = oracles.anomalies(reported.rows, DEPTH, WINDOW_US, SCORE_MIN, WINDOWS_MIN)
    names = ("host", "prefix", "start", "end", "messages", "score")
    found = shown(reported.facts.incidents, *names)
    assert {row[:4]: row[4:] for row in found} == {
        key: (count, pytest.approx(score)) for key, (count, score) in expected.items()
    }
    kinds = Counter((prefix, score > 0) for _, prefix, *_, score in found)
    assert kinds["market/quote", True] == kinds["logs/db", False] == 2, "one for each host"
    sentence = r"silent for \d+ s; usually [\d,]+ messages in that time|"
    sentence += r"[\d,]+ messages in \d+ s; usually [\d,]+"
    assert all(re.fullmatch(sentence, row["why"]) for row in reported.facts.incidents)


# -- the page --------------------------------------------------------------------------------------
class Page(HTMLParser):
    """The elements, scripts and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.lasttag == "script":
            self.scripts[-1] += data
        elif self.lasttag != "style":
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def test_the_page_shows_them(reported: Reported) -> None:
    text = render(reported.facts, title="<i>Mine</i>")
    page = Page(text)
    rows = reported.rows

    assert {tag for tag, _ in page.elements}.isdisjoint(
        {"i>mine", "b>www", "img", "link", "iframe"}
    )
    asked = {attrs.get(name) for _, attrs in page.elements for name in ("src", "href")} - {None}
    assert all(place is not None and place.startswith("#") for place in asked)
    sections = [attrs["id"] for tag, attrs in page.elements if tag == "section"]
    assert sections == ["unusual", "glance", "flows", "slow", "lost"]
    assert asked >= {f"#{name}" for name in sections}

    keys = {row.key for row in oracles.said(rows)}
    assert f"The busiest of {len(keys):,} keys" in page.text
    hottest = oracles.hot_keys(rows, 1, 1)[0]
    assert f"{hottest[0]} {hottest[1]:,}" in page.text
    assert "web/<script>alert(1)<" in page.text, "shown as it is"

    items = {item["target_id"]: item["doc"] for item in json.loads(page.scripts[0])}
    places = [attrs["id"] for tag, attrs in page.elements if "plot" in (attrs.get("class") or "")]
    assert sorted(items) == sorted(filter(None, places))
    assert "<" not in page.scripts[0]
    drawn = columns(items["plot-glance-0"])
    rates = [sum(values) for name, values in drawn.items() if name.startswith("rate")]
    assert sum(rates) * 5 == pytest.approx(len(oracles.said(rows)), rel=1e-3), "windows of 5 s"
    assert sum(drawn["lost"]) == sum(row.lost or 0 for row in rows), "gaps are on the time line"
    assert len(columns(items["plot-unusual-0"])["why"]) >= 1
    assert page.text.index("What was unusual") < page.text.index("What happened")
    # Quotes burst from 372 s to 384 s after 23:20, on both hosts; windows are of 5 s.
    burst = r"23:26:10 23:26:25 15s market/quote on \S+ : [\d,]+ messages in 15 s; usually \d+"
    assert len(re.findall(burst, page.text)) == len(HOSTS)
    missed = re.findall(r" what (?:\S+ ){3}The recorder \S+ missed (\d+) messages", page.text)
    assert int(missed[0]) >= max(row.lost or 0 for row in rows), "losses that follow each other"
    assert re.search(r"market/quote [\d,]+ tickerd \(uid 1001, alder \) \S+ tickerd", page.text)
    assert len(text) < 1_000_000
    heads = re.findall("<thead><tr>(.*?)</tr></thead>", text)
    assert len(heads) >= 5
    for head in heads:
        names = re.findall("<th[^>]*>(.*?)</th>", head)
        assert len(names) == len(set(names)), names


def columns(document: Row) -> dict[str, list[Any]]:
    """The data of a plot, of all its sources."""
    (figure,) = document["roots"]
    found: dict[str, list[Any]] = {}
    for renderer in figure["attributes"]["renderers"]:
        # A source that several have is written once.
        source = renderer["attributes"]["data_source"].get("attributes")
        found |= dict(source["data"]["entries"]) if source else {}
    return found
