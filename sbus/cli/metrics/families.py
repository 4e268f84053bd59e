"""Every metric of a bus: its name, its meaning, and the field of the admin protocol it shows.

Names follow Prometheus' rules: a counter's name ends with `_total`, and the unit is the last word,
or the word before that. Figures that the admin protocol reports for each worker have a label
`worker`; a total is their `sum()`. The label is the worker's number, which a successor keeps, so
counters continue when a worker is replaced, except for its CPU time, which starts again with the
new process. Counters with a label of reasons or codes are of the whole bus. All known reasons and
codes are there from the start, at 0, so that `rate()` sees the first increase.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

from prometheus_client.metrics_core import Metric

from sbus.cli.terminal.user_names import user_name
from sbus.protocol.admin_results import StatsResult, UserReport, VersionResult
from sbus.protocol.codes import CONNECTION_CODES, DROP_REASONS, PACKET_CODES
from sbus.protocol.text import to_text


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The answers of a bus at one time. `users` have metrics of their own; `users_left_out` counts
    the others."""

    version: VersionResult
    stats: StatsResult
    users: list[UserReport]
    users_left_out: int


class Sample(NamedTuple):
    figure: float
    labels: dict[str, str]
    suffix: str = ""
    """Of a histogram's samples, behind the name."""


class Family(NamedTuple):
    """A metric, and how its samples are found."""

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str
    samples: Callable[[Snapshot], Iterable[Sample]]

    def collect(self, snapshot: Snapshot) -> Metric:
        """The family with its samples, for the client library."""
        name = self.name.removesuffix("_total").removesuffix("_info")
        unit = name.rpartition("_")[2]
        unit = unit if unit in ("bytes", "seconds") else ""
        metric = Metric(name, self.meaning, self.kind, unit)
        for figure, labels, suffix in self.samples(snapshot):
            metric.add_sample(self.name + suffix, labels, figure)
        return metric


def collect(snapshot: Snapshot | None) -> Iterator[Metric]:
    """The families that have samples; without a snapshot, that the bus is down."""
    if snapshot is None:
        down = Metric("sbus_up", _UP, "gauge")
        down.add_sample("sbus_up", {}, 0.0)
        yield down
        return
    yield from (metric for family in FAMILIES if (metric := family.collect(snapshot)).samples)


# -- where samples are -----------------------------------------------------------------------------
Labelled = Iterable[tuple[Any, dict[str, str]]]
"""Records with the labels of their samples."""


def _families(
    fields: Mapping[str, tuple[str, str]], records: Callable[[Snapshot], Labelled], *labels: str
) -> Iterator[Family]:
    """A metric for each name, with a path in the records and a meaning."""
    for name, (path, meaning) in fields.items():
        kind = "counter" if name.endswith("_total") else "gauge"
        yield Family(name, kind, labels, meaning, partial(_fields, path, records))


def _fields(
    path: str, records: Callable[[Snapshot], Labelled], snapshot: Snapshot
) -> Iterator[Sample]:
    """A sample of each record, unless the field or a part of its path is null."""
    for record, labels in records(snapshot):
        figure = _field(record, path)
        if figure is not None:
            yield Sample(figure, labels)


def _workers(snapshot: Snapshot) -> Labelled:
    return [(worker, {"worker": str(worker.worker)}) for worker in snapshot.stats.workers]


def _operations(snapshot: Snapshot) -> Labelled:
    return [
        (longest, {"process": longest.process, "operation": longest.operation})
        for longest in snapshot.stats.longest_operations
    ]


def _users(snapshot: Snapshot) -> Labelled:
    """Labelled with the id as well, because names may be ambiguous."""
    for user in snapshot.users:
        shown_name = to_text(os.fsencode(user_name(user.uid)))
        yield user, {"uid": str(user.uid), "user": shown_name}


def _counts(name: str, path: str, label: str, known: Iterable[str], meaning: str) -> Family:
    """Counts by reason or code, with all `known` ones."""
    zeros = dict.fromkeys(known, 0)

    def samples(snapshot: Snapshot) -> Iterable[Sample]:
        counts = zeros | _field(snapshot, path)
        return [Sample(count, {label: value}) for value, count in counts.items()]

    return Family(name, "counter", (label,), meaning, samples)


def _field(record: Any, path: str) -> Any:
    """The field at a dotted path; null if a part of the path is."""
    for name in path.split("."):
        record = None if record is None else getattr(record, name)
    return record


_BUILD_LABELS = ("version", "protocol", "python", "step", "dialect", "address")


def _build(snapshot: Snapshot) -> Iterable[Sample]:
    return [Sample(1, {label: str(getattr(snapshot.version, label)) for label in _BUILD_LABELS})]


def _serving_workers(snapshot: Snapshot) -> Iterable[Sample]:
    return [Sample(worker.state == "serving", labels) for worker, labels in _workers(snapshot)]


def _latencies(snapshot: Snapshot) -> Iterable[Sample]:
    """Buckets by their upper bounds in seconds, with all deliveries up to those."""
    for worker, labels in _workers(snapshot):
        latency = worker.traffic.latency
        bounds = [*(repr(bound_us / 1e6) for bound_us in latency.bounds_us), "+Inf"]
        for bound, deliveries in zip(bounds, accumulate(latency.counts), strict=True):
            yield Sample(deliveries, {**labels, "le": bound}, "_bucket")
        yield Sample(sum(latency.counts), labels, "_count")
        yield Sample(latency.sum_us / 1e6, labels, "_sum")


# -- the metrics, in the order of the text ---------------------------------------------------------
_UP = "Whether the bus answered on its admin socket."

_BUS_FIELDS = {
    "sbus_start_time_seconds": ("stats.started_at", "When the bus started, in seconds since 1970."),
    "sbus_draining": ("stats.draining", "Whether the bus drains: it ends with its last client."),
    "sbus_clients": ("stats.clients", "Connected clients."),
    "sbus_stored_clients": ("stats.stored_clients", "Clients in the descriptor store."),
    "sbus_users": ("stats.users", "Users with at least one client."),
    "sbus_users_left_out": ("users_left_out", "Users beyond --users-max, who have no metrics."),
    "sbus_missing_names": ("stats.missing_names", "Configured users and groups that do not exist."),
    "sbus_stalled_clients": ("stats.stalled_clients", "Clients without room that hold publishers."),
    "sbus_connections_accepted_total": ("stats.connections_accepted", "Clients admitted."),
    "sbus_log_used_bytes": ("stats.log.used_bytes", "Used part of the ordered log."),
    "sbus_log_size_bytes": ("stats.log.size_bytes", "Capacity of the ordered log."),
    "sbus_table_used_bytes": ("stats.table.used_bytes", "Used part of the subscription table."),
    "sbus_table_size_bytes": ("stats.table.size_bytes", "Capacity of the subscription table."),
}
"""By the name of the metric: the path of its field in a snapshot, and its meaning."""
_WORKER_FIELDS = {
    "sbus_worker_start_time_seconds": ("started_at", "Its process's start, in seconds since 1970."),
    "sbus_worker_silence_seconds": (
        "silence_seconds",
        "Time since the worker's last heartbeat, which is due once a second.",
    ),
    "sbus_worker_deaths_total": ("deaths", "Workers that died in this place."),
    "sbus_worker_cpu_seconds_total": ("cpu_seconds", "CPU time of the worker's process."),
    "sbus_worker_busy_ratio": (
        "busy_share",
        "Part of the last second in which the worker had work: 0 to 1.",
    ),
    "sbus_worker_memory_bytes": ("memory_bytes", "Memory of the worker's process."),
    "sbus_worker_clients": ("clients", "Clients of the worker."),
    "sbus_messages_published_total": ("traffic.messages_in", "Messages accepted from clients."),
    "sbus_received_bytes_total": ("traffic.bytes_in", "Bytes read from clients."),
    "sbus_deliveries_due_total": (
        "traffic.accepted",
        "Deliveries due, one for each message and recipient: delivered, discarded, replaced, "
        "undelivered, or in a backlog now.",
    ),
    "sbus_deliveries_total": ("traffic.delivered", "Messages sent, one for each recipient."),
    "sbus_delivered_bytes_total": ("traffic.delivered_bytes", "Bytes sent to clients in messages."),
    "sbus_replaced_total": (
        "traffic.replaced",
        "Messages in backlogs whose place a newer one of the same key has taken.",
    ),
    "sbus_undelivered_total": ("traffic.undelivered", "Messages in backlogs of clients that left."),
    "sbus_backlog_messages": ("traffic.backlog", "Messages that wait for slow clients."),
    "sbus_backlog_bytes": ("traffic.backlog_bytes", "Size of those messages."),
    "sbus_slow_sends_total": (
        "traffic.slow_sends",
        "Sends, and looks at recipients' processes, that were charged to the recipients' users.",
    ),
    "sbus_stalls_total": ("traffic.stalls", "How often clients without room held publishers back."),
    "sbus_subscriptions": ("traffic.subscriptions", "Subscriptions; each occurrence counts."),
    "sbus_route_lookups_total": ("traffic.route_lookups", "Look-ups of a key's recipients."),
    "sbus_route_misses_total": ("traffic.route_misses", "Look-ups not found in the route cache."),
}
"""The same with paths in a worker's report."""
_OPERATION_FIELDS = {
    "sbus_longest_operation_seconds": (
        "seconds",
        "Longest time since the bus started for which a process did one thing and nothing else.",
    ),
    "sbus_longest_operation_cpu_seconds": ("cpu_seconds", "The same by CPU time."),
}
"""The same with paths in a longest operation."""
_USER_FIELDS = {
    "sbus_user_connections": ("connections", "Clients of the user."),
    "sbus_user_connections_limit": ("limits.connections_max", "Clients the user may have."),
    "sbus_user_subscriptions": ("subscriptions", "Subscriptions of the user's clients."),
    "sbus_user_subscriptions_limit": ("limits.subscriptions_max", "Subscriptions it may have."),
    "sbus_user_backlog_bytes": ("backlog_bytes", "Size of its backlogs, as the limit counts it."),
    "sbus_user_backlog_limit_bytes": ("limits.backlog_bytes_max", "Size those backlogs may have."),
    "sbus_user_socket_bytes": ("socket_bytes", "Room in large send buffers of its clients."),
    "sbus_user_waiting_bytes": ("waiting_bytes", "Bytes read from its clients that have to wait."),
    "sbus_user_blocking_clients": ("blocking_clients", "Clients that may hold publishers back."),
    "sbus_user_held_seconds": ("held_seconds", "Time it held publishers back in the last minute."),
    "sbus_user_discarded_total": ("discarded", "Messages discarded because its clients were slow."),
}
"""The same with paths in a user's report."""

FAMILIES: tuple[Family, ...] = (
    Family("sbus_up", "gauge", (), _UP, lambda _: [Sample(1.0, {})]),
    Family("sbus_build_info", "info", _BUILD_LABELS, "Version and settings of the bus.", _build),
    *_families(_BUS_FIELDS, lambda snapshot: [(snapshot, {})]),
    _counts(
        "sbus_connections_refused_total",
        "stats.connections_refused",
        "code",
        CONNECTION_CODES,
        "Connections refused.",
    ),
    _counts(
        "sbus_discarded_total",
        "stats.traffic.discarded",
        "reason",
        DROP_REASONS,
        "Messages not delivered because the recipient was too slow.",
    ),
    _counts(
        "sbus_refused_total",
        "stats.traffic.refused",
        "code",
        PACKET_CODES,
        "Packets refused or ignored, and clients disconnected for what they did.",
    ),
    Family(
        "sbus_worker_up",
        "gauge",
        ("worker",),
        "Whether the worker serves its clients.",
        _serving_workers,
    ),
    *_families(_WORKER_FIELDS, _workers, "worker"),
    Family(
        "sbus_latency_seconds",
        "histogram",
        ("worker",),
        "Time of a delivery inside the broker, from reading the packet to sending it or putting it "
        "into a backlog.",
        _latencies,
    ),
    *_families(_OPERATION_FIELDS, _operations, "process", "operation"),
    *_families(_USER_FIELDS, _users, "uid", "user"),
)
