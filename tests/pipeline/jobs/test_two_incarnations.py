"""A recording that was deleted and begun anew: offsets and counters of the two are not mixed."""

import json
from typing import NamedTuple

import pytest
from pyspark.sql import DataFrame, SparkSession

from sbus.pipeline.jobs.clients import slow_consumers, users
from sbus.pipeline.jobs.gaps import losses
from sbus.pipeline.jobs.latency import broker_latency, latency
from sbus.pipeline.jobs.replay import replay
from sbus.pipeline.report.facts import joined_losses
from sbus.pipeline.store.schemas import CLIENTS, EVENTS
from tests.pipeline.jobs import oracles
from tests.support.job_results import LOSS_COLUMNS, answer, keyed
from tests.support.job_rows import SECOND_US, Rows, frame, table, twice_recorded


class Twice(NamedTuple):
    rows: Rows
    read: list[oracles.Message]
    messages: DataFrame
    clients: DataFrame
    events: DataFrame


@pytest.fixture(scope="module")
def twice(spark: SparkSession) -> Twice:
    rows = twice_recorded()
    messages = frame(spark, rows.messages)
    others = frame(spark, rows.clients, CLIENTS), frame(spark, rows.events, EVENTS)
    return Twice(rows, oracles.rows(table(rows.messages)), messages, *others)


def test_a_loss_begins_with_the_row_before_it_in_its_own_recording(twice: Twice) -> None:
    found = losses(twice.messages, window_seconds=2)
    assert keyed(answer(found, *LOSS_COLUMNS), 3) == oracles.losses(twice.read, 2 * SECOND_US)
    begins = answer(found, "recorder", "incarnation", "start", "since")
    expected = oracles.row_before(twice.read, 2 * SECOND_US)
    assert {row[:3]: row[3] for row in begins} == expected
    joined = joined_losses(found.toArrow().to_pylist(), 2)
    assert sum(loss["lost"] for loss in joined) == sum(
        row[4] or 0 for row in oracles.gaps(twice.read)
    )
    assert {loss["incarnation"] for loss in joined} == {"i1", "i2"}
    assert all(loss["since"] <= loss["until"] for loss in joined)


def test_messages_are_replayed_in_the_order_of_each_recording(twice: Twice) -> None:
    published: list[bytes] = []
    replay(twice.messages, lambda key, payload: published.append(payload), speed=None)
    expected = [f"{name} {offset}".encode() for name, offset in oracles.replayed(twice.read)]
    assert published == expected
    for name in (b"i1", b"i2"):
        own = [int(text.split()[1]) for text in published if text.startswith(name)]
        assert own == sorted(own)


def test_probes_are_those_of_both(twice: Twice) -> None:
    expected = oracles.latency(table(twice.rows.messages), 60 * SECOND_US)
    found = answer(latency(twice.messages), "recorder", "start", "probes", "unusable", "max_ms")
    assert keyed(found, 2) == {
        where: (probes, bad, took[-1]) for where, (probes, bad, took) in expected.items()
    }


def test_the_brokers_counts_grow_within_a_recording(twice: Twice) -> None:
    histograms = [
        (row["recorder"], row["incarnation"], row["offset"], json.loads(row["fields"])["latency"])
        for row in twice.rows.events
    ]
    counts = [(*place, latency["counts"]) for *place, latency in histograms]
    found = answer(broker_latency(twice.events), "bound_us", "deliveries")
    assert dict(found) == dict(zip([100, None], oracles.broker_latency(counts)["r1"], strict=True))


def test_what_clients_did_between_the_two_is_in_neither(twice: Twice) -> None:
    grown = oracles.growth(table(twice.rows.clients, CLIENTS).to_pylist())
    assert len(grown) == 2
    found = answer(
        slow_consumers(twice.clients),
        *("recorder", "incarnation", "client", "snapshots", "delivered", "discarded"),
        "backlog_last",
    )
    assert keyed(found, 3) == {
        (recorder, incarnation, client): (
            *(len(own["rows"]), own["delivered"], own["discarded"], own["rows"][-1]["backlog"]),
        )
        for (recorder, incarnation, client, _), own in grown.items()
    }
    found = answer(
        users(twice.messages, twice.clients, twice.events),
        *("host", "uid", "clients", "measured", "messages", "delivered", "discarded"),
    )
    by_client = [message for message in oracles.said(twice.read) if message.uid is not None]
    sums = (sum(own[name] for own in grown.values()) for name in ("delivered", "discarded"))
    assert found == [("alder", 7, 2, 1, len(by_client), *sums)]
