"""The results of the jobs, computed a second time: row by row, in plain Python.

They are slow and simple on purpose, and follow the documentation, not the jobs. Only which counts
make an incident is not computed again; it has tests of its own.
"""

import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sbus.pipeline.jobs.incidents import incidents


class Message(NamedTuple):
    """A row of `messages`, its payload as its size; times in microseconds since 1970."""

    kind: str
    key: str
    size: int
    time_us: int
    recorder: str
    incarnation: str
    host: str
    offset: int
    client: int | None
    pid: int | None
    uid: int | None
    program: str | None
    recipients: int | None
    lost: int | None


def rows(messages: pa.Table) -> list[Message]:
    """Of a table in the recorder's schema."""
    columns = [
        messages["kind"],
        messages["key"],
        pc.fill_null(pc.binary_length(messages["value"]), 0),
        messages["timestamp"].cast(pa.int64()),
        *(messages[name] for name in Message._fields[4:]),
    ]
    return list(map(Message._make, zip(*(column.to_pylist() for column in columns), strict=True)))


def said(messages: Iterable[Message]) -> list[Message]:
    return [message for message in messages if message.kind == "MSG"]


def prefix(key: str, depth: int) -> str:
    return "/".join(key.split("/")[:depth])


def publishers(messages: Iterable[Message]) -> int | None:
    return len({(m.recorder, m.client, m.pid) for m in messages if m.client is not None}) or None


def traffic(messages: Iterable[Message], depth: int, window_us: int) -> dict[Any, Any]:
    """(window's start, prefix): messages, bytes, publishers."""
    groups = defaultdict(list)
    for message in said(messages):
        start = message.time_us // window_us * window_us
        groups[start, prefix(message.key, depth)].append(message)
    return {key: (len(g), sum(m.size for m in g), publishers(g)) for key, g in groups.items()}


def hot_keys(messages: Iterable[Message], top: int, by: int) -> list[Any]:
    """key, messages, bytes, publishers, first, last; `by` 1 is messages, 2 bytes."""
    groups = defaultdict(list)
    for message in said(messages):
        groups[message.key].append(message)
    found: list[Any] = [
        (
            key,
            len(g),
            sum(m.size for m in g),
            publishers(g),
            min(m.time_us for m in g),
            max(m.time_us for m in g),
        )
        for key, g in groups.items()
    ]
    return sorted(found, key=lambda row: (-row[by], row[0].encode()))[:top]


def fan_out(messages: Iterable[Message]) -> Counter[int | None]:
    return Counter(message.recipients for message in said(messages))


def deliveries(messages: Iterable[Message], depth: int) -> dict[str, Any]:
    """prefix: messages, deliveries, delivered bytes, mean, max, unheard, unknown."""
    groups = defaultdict(list)
    for message in said(messages):
        groups[prefix(message.key, depth)].append(message)
    found = {}
    for key, group in groups.items():
        known = [(m.recipients, m.size) for m in group if m.recipients is not None]
        counts = [count for count, _ in known]
        found[key] = (
            len(group),
            sum(counts),
            sum(count * size for count, size in known),
            statistics.fmean(counts) if counts else None,
            max(counts, default=None),
            counts.count(0),
            len(group) - len(known),
        )
    return found


def gaps(messages: Iterable[Message]) -> list[tuple[str, str, int, int, int | None]]:
    """recorder, incarnation, offset, time, lost."""
    found = [
        (m.recorder, m.incarnation, m.offset, m.time_us, m.lost)
        for m in messages
        if m.kind == "GAP"
    ]
    return sorted(found, key=lambda row: row[:3])


def losses(messages: Iterable[Message], window_us: int) -> dict[Any, Any]:
    """(recorder, incarnation, window's start): gaps, lost, unknown."""
    groups = defaultdict(list)
    for recorder, incarnation, _, time_us, lost in gaps(messages):
        groups[recorder, incarnation, time_us // window_us * window_us].append(lost)
    return {
        key: (len(found), sum(lost or 0 for lost in found), found.count(None))
        for key, found in groups.items()
    }


def row_before(messages: Iterable[Message], window_us: int) -> dict[Any, int | None]:
    """(recorder, incarnation, window's start): the time of the row before the window's first
    gap."""
    times = {(m.recorder, m.incarnation, m.offset): m.time_us for m in messages}
    found: dict[Any, int | None] = {}
    for recorder, incarnation, offset, time_us, _ in gaps(messages):
        window = recorder, incarnation, time_us // window_us * window_us
        found.setdefault(window, times.get((recorder, incarnation, offset - 1)))
    return found


def replayed(messages: Iterable[Message]) -> list[tuple[str, int]]:
    """Incarnation and offset of what is published, in that order."""
    due: dict[Any, int] = {}
    found = []
    for m in sorted(said(messages), key=lambda m: (m.recorder, m.incarnation, m.offset)):
        if m.key.startswith("!") or m.key == f"sbus/probe/{m.recorder}":
            continue
        recording = m.recorder, m.incarnation
        due[recording] = max(m.time_us, due.get(recording, m.time_us))
        found.append((due[recording], *recording, m.offset))
    return [(incarnation, offset) for _, _, incarnation, offset in sorted(found)]


def broker_latency(
    histograms: Iterable[tuple[str, str, int, list[int]]],
) -> dict[str, list[int]]:
    """recorder: deliveries by place in the histogram; of recorder, incarnation, offset, counts."""
    before: dict[Any, list[int]] = {}
    found: dict[str, list[int]] = defaultdict(lambda: [0] * len(next(iter(before.values()))))
    for recorder, incarnation, _, now in sorted(histograms):
        then = before.get((recorder, incarnation), now)
        if any(map(int.__lt__, now, then)):
            then = [0] * len(now)
        before[recorder, incarnation] = now
        sums = zip(found[recorder], now, then, strict=True)
        found[recorder] = [so_far + after - earlier for so_far, after, earlier in sums]
    return found


def senders(messages: Iterable[Message], depth: int) -> dict[Any, int]:
    """(host, uid, program, prefix): messages."""
    return Counter((m.host, m.uid, m.program, prefix(m.key, depth)) for m in said(messages))


def receivers(
    messages: Iterable[Message], subscribed: Iterable[tuple[str, int, int, str, str]], depth: int
) -> dict[Any, tuple[int, int]]:
    """(host, prefix, uid, program): clients, deliveries; of (host, client, uid, program, pattern)
    that were subscribed."""
    keys = Counter((m.host, m.key) for m in said(messages) if not m.key.startswith("!"))
    by_client = defaultdict(set)
    for host, client, uid, program, pattern in subscribed:
        by_client[host, client, uid, program].add(pattern)
    clients = defaultdict(set)
    counts: Counter[Any] = Counter()
    for (host, client, uid, program), patterns in by_client.items():
        for (on, key), count in keys.items():
            if on == host and any(matches(pattern, key) for pattern in patterns):
                who = host, prefix(key, depth), uid, program
                clients[who].add(client)
                counts[who] += count
    return {who: (len(clients[who]), counts[who]) for who in counts}


def matches(pattern: str, key: str) -> bool:
    """Segment by segment, as the protocol's document says."""
    if pattern == "":
        return True
    wanted, found = pattern.split("/"), key.split("/")
    if wanted[-1] == "":
        wanted.pop()
        if len(found) <= len(wanted):
            return False
        found = found[: len(wanted)]
    if len(wanted) != len(found):
        return False
    return all(map(_segment_matches, wanted, found))


def _segment_matches(wanted: str, found: str) -> bool:
    literal, star, behind = wanted.partition("*")
    assert not behind.strip("*")
    return found.startswith(literal) if star else found == literal


def latency(
    messages: pa.Table, window_us: int
) -> dict[tuple[str, int], tuple[int, int, list[float]]]:
    """(recorder, window's start): probes, unusable ones, milliseconds of the others in order."""
    found: dict[Any, Any] = defaultdict(lambda: [0, 0, []])
    columns = (messages["kind"], messages["key"], messages["value"], messages["recorder"])
    times = messages["timestamp"].cast(pa.int64()).to_pylist()
    for kind, key, value, recorder, time_us in zip(
        *(column.to_pylist() for column in columns), times, strict=True
    ):
        if kind != "MSG" or key != f"sbus/probe/{recorder}":
            continue
        entry = found[recorder, time_us // window_us * window_us]
        entry[0] += 1
        if re.fullmatch(rb"[0-9]{1,18}", value or b"") and int(value) <= time_us:
            entry[2].append((time_us - int(value)) / 1000)
        else:
            entry[1] += 1
    return {key: (probes, bad, sorted(took)) for key, (probes, bad, took) in found.items()}


def percentile(ordered: Sequence[float], part: float) -> float:
    """With the value between two neighbours in proportion."""
    place = part * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def series(
    messages: Iterable[Message], depth: int, window_us: int
) -> dict[tuple[str, str], tuple[int, list[int]]]:
    """(host, prefix): the start of the second window, and the counts of all but the first and the
    last."""
    by_host: dict[str, list[Message]] = defaultdict(list)
    for message in said(messages):
        by_host[message.host].append(message)
    found = {}
    for host, own in by_host.items():
        every = {m.time_us // window_us * window_us for m in own}
        starts = range(min(every) + window_us, max(every), window_us)
        counts = Counter((prefix(m.key, depth), m.time_us // window_us * window_us) for m in own)
        for name in {name for name, _ in counts}:
            found[host, name] = (min(starts, default=0), [counts[name, start] for start in starts])
    return found


def anomalies(
    messages: Iterable[Message], depth: int, window_us: int, score_min: float, windows_min: int
) -> dict[tuple[str, str, int, int], tuple[int, float]]:
    """(host, prefix, start, end): messages, score."""
    found = {}
    for (host, name), (begin, counts) in series(messages, depth, window_us).items():
        if len(counts) >= windows_min:
            for each in incidents(np.array(counts), score_min):
                start, end = (begin + place * window_us for place in (each.first, each.end))
                found[host, name, start, end] = (each.messages, each.score)
    return found


def growth(snapshots: Sequence[dict[str, Any]]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """(recorder, incarnation, client, connected_at): its snapshots, and by how much its counters
    grew."""
    counted = [row for row in snapshots if row["messages_in"] is not None]
    began: dict[Any, Any] = {}
    groups = defaultdict(list)
    for row in counted:
        recording = row["recorder"], row["incarnation"]
        began[recording] = min(row["timestamp"], began.get(recording, row["timestamp"]))
        groups[*recording, row["client"], row["connected_at"]].append(row)
    found = {}
    for who, own in groups.items():
        was_there = who[3] < began[who[:2]]
        found[who] = {
            "rows": sorted(own, key=lambda row: int(row["offset"])),
            **{
                name: max(row[name] for row in own)
                - (min(row[name] for row in own) if was_there else 0)
                for name in (
                    *("messages_in", "bytes_in", "delivered", "delivered_bytes"),
                    *("discarded", "refused"),
                )
            },
        }
    return found


def slope(points: Sequence[tuple[float, float]]) -> float | None:
    """Of the straight line with the least squares."""
    if len({x for x, _ in points}) < 2:
        return None
    return statistics.linear_regression(*zip(*points, strict=True)).slope
