"""A generated recording of a busy hour on two hosts: large, reproducible by its seed, and fast.

It has something for every job to find: users with several programs, keys of very different weight,
a burst, a silence, gaps with and without a count, a client that falls behind and loses messages,
one that stalls, keys that are not UTF-8, and names that look like markup.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sbus.pipeline.store.row_batches import RecorderIdentity
from sbus.pipeline.store.schemas import (
    CLIENTS,
    EVENTS,
    MESSAGES,
    PROBE_KEY_PREFIX,
    SEGMENT_SCHEMAS,
    conform,
)
from sbus.pipeline.store.writer import RecordingWriter

BEGIN_US = int(datetime(2026, 3, 2, 23, 20, tzinfo=UTC).timestamp()) * 1_000_000
"""So that it lasts to the next day."""
SECOND_US = 1_000_000
SNAPSHOT_SECONDS = 10
HOSTS = ("alder", "birch")
BOUNDS_US = (50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 100_000)


class Program(NamedTuple):
    """A client that publishes and one that listens, of each host."""

    uid: int
    name: str
    patterns: tuple[str, ...]
    prefix: str
    leaves: tuple[str, ...]
    keys: int
    weight: float
    payload_bytes: int
    recipients: float


PROGRAMS = (
    Program(1000, "weatherd", (), "weather/station", ("temp", "wind", "rain"), 40, 16, 40, 3.0),
    Program(
        1000, "cam-grab", ("camera/*/control",), "camera/acceptor", ("frame",), 4, 3, 1800, 1.2
    ),
    Program(1001, "tickerd", (), "market/quote", ("bid", "ask"), 300, 45, 64, 4.5),
    Program(1001, "tickerd", (), "market/trade", ("done",), 300, 14, 96, 2.0),
    Program(1002, "logship", (), "logs/web", ("info", "warning", "error"), 12, 12, 180, 1.0),
    Program(1002, "logship", (), "logs/db", ("info", "slow"), 6, 5, 220, 1.0),
    Program(0, "backupd", (), "backup/job", ("state",), 5, 0.6, 30, 0.0),
    Program(33, "<b>www</b>", (), "web/<script>alert(1)</script>", ("hit",), 9, 3, 120, 0.4),
    Program(1003, "legacy", (), "alt/gr\\xfc\\xdfe", ("x\\\\y",), 3, 1.4, 12, 1.0),
)
LISTENERS = (
    (1000, "dashboard", ("weather/", "market/quote/", "logs/")),
    (1001, "strategy", ("market/",)),
    (1001, "archiver", ("market/trade/", "camera/")),
    (1002, "alerts", ("logs/*/*/error", "logs/*/*/warning")),
    (33, "<b>www</b>", ("weather/station/*/temp",)),
)
SLOW, STALLS = "dashboard", "archiver"


@dataclass(frozen=True)
class Tables:
    messages: pa.Table
    clients: pa.Table
    events: pa.Table


def generate(messages: int = 1_000_000, *, seed: int = 1, seconds: int = 3_600) -> Tables:
    """`messages` of them, without probes and gaps, over all hosts, in the order of each host."""
    shares = [messages * 3 // 5, messages - messages * 3 // 5]
    made = [
        _host(host, share, np.random.default_rng([seed, number]), seconds)
        for number, (host, share) in enumerate(zip(HOSTS, shares, strict=True))
    ]
    return Tables(
        *(
            pa.concat_tables([getattr(one, name) for one in made])
            for name in ("messages", "clients", "events")
        )
    )


def write(
    directory: Path, tables: Tables, *, batch_rows: int = 50_000, table: str | None = None
) -> None:
    """As the recorders would have written it, in segment files, to be sealed to `table`."""
    for identity in _identities(tables):
        with RecordingWriter(directory, identity, table) as writer:
            for name in ("messages", "clients", "events"):
                whole = getattr(tables, name)
                own = whole.filter(pc.equal(whole["recorder"], identity.recorder)).combine_chunks()
                for batch in own.to_batches(max_chunksize=batch_rows):
                    writer.tables[name].append(conform(batch, SEGMENT_SCHEMAS[name]))


def _identities(tables: Tables) -> list[RecorderIdentity]:
    columns = tables.messages.select(["recorder", "host", "bus"])
    distinct = columns.group_by(["recorder", "host", "bus"]).aggregate([]).to_pylist()
    return [RecorderIdentity(**row) for row in distinct]


def _host(host: str, count: int, rng: np.random.Generator, seconds: int) -> Tables:
    identity = RecorderIdentity.of(host, "/run/sbus.socket")
    parts = [_traffic(count, rng, seconds), _probes(identity, rng, seconds), _gaps(rng, seconds)]
    messages = _numbered(pa.concat_tables(parts, promote_options="default"), identity, MESSAGES)
    return Tables(
        messages,
        _numbered(_snapshots(messages, rng, seconds), identity, CLIENTS),
        _numbered(_events(seconds), identity, EVENTS),
    )


def _numbered(table: pa.Table, identity: RecorderIdentity, schema: pa.Schema) -> pa.Table:
    """In the order of time, with offsets, and the rest of the schema's columns."""
    table = table.take(pc.sort_indices(table, [("timestamp", "ascending")]))
    rows = table.num_rows
    known = {
        "recorder": pa.repeat(identity.recorder, rows),
        "incarnation": pa.repeat("0" * 16, rows),
        "host": pa.repeat(identity.host, rows),
        "bus": pa.repeat(identity.bus, rows),
        "offset": pa.array(np.arange(rows)),
    }
    if "value" in table.column_names:
        known["payload_bytes"] = pc.binary_length(table["value"]).cast(pa.int64())
    columns = [
        known[field.name]
        if field.name in known
        else table[field.name].cast(field.type)
        if field.name in table.column_names
        else pa.nulls(rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _traffic(count: int, rng: np.random.Generator, seconds: int) -> pa.Table:
    weights = np.array([program.weight for program in PROGRAMS])
    which = rng.choice(len(PROGRAMS), count, p=weights / weights.sum())
    at = rng.random(count) * seconds
    # Quotes burst in one of twenty parts of the time, and the database falls silent in another.
    quotes = which == 2
    burst = quotes & (rng.random(count) < 0.12)
    at[burst] = (0.62 + 0.02 * rng.random(burst.sum())) * seconds
    silent = (which == 5) & (at > 0.3 * seconds) & (at < 0.36 * seconds)
    at[silent] = 0.36 * seconds + rng.random(silent.sum()) * 0.64 * seconds
    return pa.table(
        {
            "timestamp": _times(at),
            "key": _keys(which, rng),
            "value": _payloads(which, rng),
            "kind": pa.repeat("MSG", count),
            "client": which + 1,
            "uid": np.array([program.uid for program in PROGRAMS])[which],
            "gid": np.array([program.uid for program in PROGRAMS])[which],
            "pid": which + 4_000,
            "program": pa.array([program.name for program in PROGRAMS]).take(pa.array(which)),
            "recipients": rng.poisson(np.array([p.recipients for p in PROGRAMS])[which]),
        }
    )


def _times(at_seconds: NDArray[Any]) -> pa.Array:
    times = BEGIN_US + (at_seconds * SECOND_US).astype(np.int64)
    return pa.array(times).cast(pa.timestamp("us", tz="UTC"))


def _keys(which: NDArray[np.int64], rng: np.random.Generator) -> pa.Array:
    """Of each program's keys the first are the most frequent."""
    names: list[str] = []
    chosen = np.empty(len(which), np.int64)
    for number, program in enumerate(PROGRAMS):
        own = np.flatnonzero(which == number)
        keys = np.minimum(
            rng.exponential(program.keys / 4, len(own)).astype(np.int64), program.keys - 1
        )
        leaves = rng.integers(0, len(program.leaves), len(own))
        chosen[own] = len(names) + keys * len(program.leaves) + leaves
        names += [
            f"{program.prefix}/{key}/{leaf}"
            for key in range(program.keys)
            for leaf in program.leaves
        ]
    return pa.array(names).take(pa.array(chosen))


def _payloads(which: NDArray[np.int64], rng: np.random.Generator) -> pa.Array:
    """Cut out of one row of noise; some are empty."""
    mean = np.array([program.payload_bytes for program in PROGRAMS])[which]
    sizes = np.minimum(rng.exponential(mean), 8 * mean).astype(np.int64)
    ends = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    noise = pa.py_buffer(rng.bytes(int(ends[-1])))
    return pa.Array.from_buffers(pa.binary(), len(which), [None, pa.py_buffer(ends), noise])


def _probes(identity: RecorderIdentity, rng: np.random.Generator, seconds: int) -> pa.Table:
    sent = np.arange(seconds) * 1.0 + 0.25
    slow = np.where((sent > 0.62 * seconds) & (sent < 0.64 * seconds), 9.0, 1.0)
    took = rng.gamma(3.0, 0.00015, seconds) * slow
    sent_us = BEGIN_US + (sent * SECOND_US).astype(np.int64)
    return pa.table(
        {
            "timestamp": _times(sent + took),
            "key": pa.repeat(PROBE_KEY_PREFIX + identity.recorder, seconds),
            "value": pa.array([b"%d" % when for when in sent_us.tolist()], pa.binary()),
            "kind": pa.repeat("MSG", seconds),
            "client": np.full(seconds, 99),
            "uid": np.zeros(seconds, np.int64),
            "gid": np.zeros(seconds, np.int64),
            "pid": np.full(seconds, 999),
            "program": pa.repeat("sbusctl", seconds),
            "recipients": np.ones(seconds, np.int64),
        }
    )


def _gaps(rng: np.random.Generator, seconds: int) -> pa.Table:
    at = np.sort(rng.random(12)) * seconds
    lost: list[int | None] = rng.integers(1, 5_000, 12).tolist()
    lost[4] = lost[9] = None
    return pa.table(
        {
            "timestamp": _times(at),
            "key": np.full(12, ""),
            "value": pa.array([b""] * 12, pa.binary()),
            "kind": np.full(12, "GAP"),
            "lost": pa.array(lost, pa.int64()),
        }
    )


def _snapshots(messages: pa.Table, rng: np.random.Generator, seconds: int) -> pa.Table:
    """Every client every ten seconds; publishers' counters are those of the messages."""
    rounds = np.arange(0, seconds + 1, SNAPSHOT_SECONDS)
    moments = BEGIN_US + rounds * SECOND_US
    numbers = messages["client"].to_numpy(zero_copy_only=False)
    times = messages["timestamp"].cast(pa.int64()).to_numpy()
    parts = []
    for client, (uid, name, _) in enumerate(_clients(), start=1):
        own = times[numbers == client]
        sent = np.searchsorted(own, moments)
        delivered = (
            np.cumsum(rng.poisson(400.0, len(rounds))) if client > len(PROGRAMS) else sent * 0
        )
        overload = np.clip(rounds - 0.5 * seconds, 0, None) if name == SLOW else rounds * 0.0
        backlog = np.minimum(overload * 60, 65_536).astype(np.int64)
        discarded = np.clip(overload * 60 - 65_536, 0, None).astype(np.int64)
        stalled = (name == STALLS) & (rounds > 0.62 * seconds) & (rounds < 0.66 * seconds)
        parts.append(
            pa.table(
                {
                    "timestamp": _times(rounds + client / 1_000),
                    "client": np.full(len(rounds), client),
                    "uid": np.full(len(rounds), uid),
                    "gid": np.full(len(rounds), uid),
                    "pid": np.full(len(rounds), client + 3_999),
                    "program": np.full(len(rounds), name),
                    "worker": np.full(len(rounds), client % 4),
                    "connected_at": _times(np.full(len(rounds), -120.0 if client % 3 else -0.0)),
                    "messages_in": sent + 1_000 * (client % 3),
                    "bytes_in": sent * 90,
                    "accepted": delivered + backlog + discarded,
                    "delivered": delivered,
                    "delivered_bytes": delivered * 120,
                    "discarded": discarded,
                    "backlog": backlog,
                    "backlog_bytes": backlog * 150,
                    "subscriptions": np.full(len(rounds), 2),
                    "refused": np.full(len(rounds), client % 2),
                    "soft": np.full(len(rounds), "block" if name == STALLS else "queue"),
                    "hard": np.full(len(rounds), "discard"),
                    "order": np.full(len(rounds), "queue"),
                    "stalled": stalled,
                    "waits_for": np.full(len(rounds), ""),
                }
            )
        )
    return pa.concat_tables(parts)


def _clients() -> Sequence[tuple[int, str, tuple[str, ...]]]:
    """uid, program and patterns of all clients, in the order of their numbers."""
    return [*((p.uid, p.name, p.patterns) for p in PROGRAMS), *LISTENERS]


def _events(seconds: int) -> pa.Table:
    rows = []
    for client, (uid, name, patterns) in enumerate(_clients(), start=1):
        who = {"client": client, "uid": uid, "pid": client + 3_999, "program": name}
        rows += [
            {
                "timestamp": BEGIN_US + client,
                "event": "client-subscribed",
                **who,
                "fields": json.dumps({**who, "pattern": pattern}),
            }
            for pattern in patterns
        ]
    for second in range(0, seconds + 1, SNAPSHOT_SECONDS):
        counts = [second * share for share in (40, 300, 220, 90, 30, 12, 6, 3, 1, 0, second // 900)]
        latency = {"bounds_us": BOUNDS_US, "counts": counts, "sum_us": 200 * sum(counts)}
        rows.append(
            {
                "timestamp": BEGIN_US + second * SECOND_US,
                "event": "stats",
                "fields": json.dumps({"latency": latency}),
            }
        )
    for event, share, client in (("client-stalled", 0.62, 12), ("client-resumed", 0.66, 12)):
        rows.append(
            {
                "timestamp": BEGIN_US + int(share * seconds) * SECOND_US,
                "event": event,
                "client": client,
                "uid": 1001,
                "pid": client + 3_999,
                "program": STALLS,
                "fields": "{}",
            }
        )
    return pa.Table.from_pylist(
        rows,
        schema=pa.schema(
            [
                (f.name, f.type) if f.name != "timestamp" else ("timestamp", pa.int64())
                for f in EVENTS
                if f.name in {"timestamp", "event", "client", "uid", "pid", "program", "fields"}
            ]
        ),
    )
