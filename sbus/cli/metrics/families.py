"""Every metric of a bus: its name, what it means, and which figure of the admin protocol it is.

Names, units and suffixes are as Prometheus wants them. What the admin protocol has for each worker
has a label `worker`, and no total besides, which `sum()` is; a worker's number is its place, so its
counters go on when it dies and another takes the place, but for its CPU time, which begins anew
with the process. What has a label of reasons or codes is of the whole bus, and every known one is
there from the start, at 0, so that `rate()` sees the first.

    collect(snapshot)                 families with samples; without a snapshot `sbus_up` alone
    FAMILIES                          all of them, for documents and tests

Knows neither sockets nor how text is made of it.
"""

from collections.abc import Iterator

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from sbus.cli.metrics.kinds import (
    USER,
    Family,
    Snapshot,
    build_info,
    by_name,
    counter,
    gauge,
    of_bus,
    of_fill,
    of_traffic,
    of_user,
    of_worker,
    worker_latency,
)
from sbus.protocol.codes import CONNECTION_CODES, DISCARD_REASONS, PACKET_CODES

_UP = "Whether the bus answered on its admin socket."


def collect(snapshot: Snapshot | None) -> Iterator[Metric]:
    """The families of a snapshot; None when there is none to be had."""
    yield GaugeMetricFamily("sbus_up", _UP, float(snapshot is not None))
    if snapshot is None:
        return
    for family in FAMILIES:
        metric = family.collect(snapshot)
        if metric.samples and family.name != "sbus_up":
            yield metric


FAMILIES: tuple[Family, ...] = (
    gauge("sbus_up", _UP, lambda _: [((), 1)]),
    build_info("sbus_build_info", "Which bus this is."),
    # -- the bus -----------------------------------------------------------------------------------
    gauge(
        "sbus_start_time_seconds",
        "When the bus started, in seconds since 1970.",
        of_bus(lambda stats: stats.started_at),
        unit="seconds",
    ),
    gauge(
        "sbus_draining",
        "Whether the bus lets nobody in any more and ends with its last client.",
        of_bus(lambda stats: stats.draining),
    ),
    gauge("sbus_clients", "Clients that are connected.", of_bus(lambda stats: stats.clients)),
    gauge("sbus_users", "Users with at least one client.", of_bus(lambda stats: stats.users)),
    gauge(
        "sbus_users_left_out",
        "Users that have no metrics of their own here, because there would be too many.",
        lambda snapshot: [((), snapshot.users_left_out)],
    ),
    gauge(
        "sbus_stalled_clients",
        "Clients that have no room and whose publishers are held back.",
        of_bus(lambda stats: stats.stalled_clients),
    ),
    counter(
        "sbus_connections_accepted_total",
        "Clients that were let in.",
        of_bus(lambda stats: stats.connections_accepted),
    ),
    counter(
        "sbus_connections_refused_total",
        "Clients that were not let in.",
        by_name(CONNECTION_CODES, lambda stats: stats.connections_refused),
        "code",
    ),
    gauge(
        "sbus_log_used_bytes",
        "What stands in the ordered log between workers.",
        of_fill(lambda stats: stats.log, lambda fill: fill.used_bytes),
        unit="bytes",
    ),
    gauge(
        "sbus_log_size_bytes",
        "What the ordered log holds at most.",
        of_fill(lambda stats: stats.log, lambda fill: fill.size_bytes),
        unit="bytes",
    ),
    gauge(
        "sbus_table_used_bytes",
        "What stands in the subscription table.",
        of_fill(lambda stats: stats.table, lambda fill: fill.used_bytes),
        unit="bytes",
    ),
    gauge(
        "sbus_table_size_bytes",
        "What the subscription table holds at most.",
        of_fill(lambda stats: stats.table, lambda fill: fill.size_bytes),
        unit="bytes",
    ),
    counter(
        "sbus_discarded_total",
        "Messages not delivered because the recipient was too slow.",
        by_name(DISCARD_REASONS, lambda stats: stats.traffic.discarded),
        "reason",
    ),
    counter(
        "sbus_refused_total",
        "Packets that were refused or ignored, and clients disconnected for what they did.",
        by_name(PACKET_CODES, lambda stats: stats.traffic.refused),
        "code",
    ),
    # -- workers -----------------------------------------------------------------------------------
    gauge(
        "sbus_worker_up",
        "Whether the worker serves its clients.",
        of_worker(lambda worker: worker.state == "serving"),
        "worker",
    ),
    gauge(
        "sbus_worker_start_time_seconds",
        "When the process of the worker started, in seconds since 1970.",
        of_worker(lambda worker: worker.started_at),
        "worker",
        unit="seconds",
    ),
    gauge(
        "sbus_worker_silence_seconds",
        "Time since the worker last showed that it is alive, which it does once in a second.",
        of_worker(lambda worker: worker.silence_seconds),
        "worker",
        unit="seconds",
    ),
    counter(
        "sbus_worker_deaths_total",
        "Workers that died in this place.",
        of_worker(lambda worker: worker.deaths),
        "worker",
    ),
    counter(
        "sbus_worker_cpu_seconds_total",
        "CPU time of the worker's process.",
        of_worker(lambda worker: worker.cpu_seconds),
        "worker",
        unit="seconds",
    ),
    gauge(
        "sbus_worker_memory_bytes",
        "Memory of the worker's process.",
        of_worker(lambda worker: worker.memory_bytes),
        "worker",
        unit="bytes",
    ),
    gauge(
        "sbus_worker_clients",
        "Clients of the worker.",
        of_worker(lambda worker: worker.clients),
        "worker",
    ),
    # -- their traffic -----------------------------------------------------------------------------
    counter(
        "sbus_messages_published_total",
        "Messages that clients published and the bus accepted.",
        of_traffic(lambda traffic: traffic.messages_in),
        "worker",
    ),
    counter(
        "sbus_received_bytes_total",
        "What was read from clients.",
        of_traffic(lambda traffic: traffic.bytes_in),
        "worker",
        unit="bytes",
    ),
    counter(
        "sbus_deliveries_due_total",
        "Deliveries that were due, one for each message and recipient: delivered, discarded, "
        "undelivered, or in a backlog now.",
        of_traffic(lambda traffic: traffic.accepted),
        "worker",
    ),
    counter(
        "sbus_deliveries_total",
        "Messages sent to clients, one for each message and recipient.",
        of_traffic(lambda traffic: traffic.delivered),
        "worker",
    ),
    counter(
        "sbus_delivered_bytes_total",
        "What was sent to clients in messages.",
        of_traffic(lambda traffic: traffic.delivered_bytes),
        "worker",
        unit="bytes",
    ),
    counter(
        "sbus_undelivered_total",
        "Messages that stood in the backlog of a client when it left.",
        of_traffic(lambda traffic: traffic.undelivered),
        "worker",
    ),
    gauge(
        "sbus_backlog_messages",
        "Messages kept for clients that read too slowly.",
        of_traffic(lambda traffic: traffic.backlog),
        "worker",
    ),
    gauge(
        "sbus_backlog_bytes",
        "What those messages add up to.",
        of_traffic(lambda traffic: traffic.backlog_bytes),
        "worker",
        unit="bytes",
    ),
    counter(
        "sbus_stalls_total",
        "How often a client had no room and its publishers were to be held back.",
        of_traffic(lambda traffic: traffic.stalls),
        "worker",
    ),
    gauge(
        "sbus_subscriptions",
        "Subscriptions of the worker's clients, each occurrence of a pattern counting.",
        of_traffic(lambda traffic: traffic.subscriptions),
        "worker",
    ),
    counter(
        "sbus_route_lookups_total",
        "How often the recipients of a key were looked up.",
        of_traffic(lambda traffic: traffic.route_lookups),
        "worker",
    ),
    counter(
        "sbus_route_misses_total",
        "How often they were not in the route cache.",
        of_traffic(lambda traffic: traffic.route_misses),
        "worker",
    ),
    worker_latency(
        "sbus_latency_seconds",
        "Time of a delivery inside the broker, from reading the packet to sending it or putting it "
        "into a backlog.",
    ),
    # -- users -------------------------------------------------------------------------------------
    gauge(
        "sbus_user_connections",
        "Clients of the user.",
        of_user(lambda user: user.connections),
        *USER,
    ),
    gauge(
        "sbus_user_connections_limit",
        "How many it may have.",
        of_user(lambda user: user.limits.connections_max),
        *USER,
    ),
    gauge(
        "sbus_user_subscriptions",
        "Subscriptions of the user's clients.",
        of_user(lambda user: user.subscriptions),
        *USER,
    ),
    gauge(
        "sbus_user_subscriptions_limit",
        "How many it may have.",
        of_user(lambda user: user.limits.subscriptions_max),
        *USER,
    ),
    gauge(
        "sbus_user_backlog_bytes",
        "What is kept for the user's clients, as its limit counts it.",
        of_user(lambda user: user.backlog_bytes),
        *USER,
        unit="bytes",
    ),
    gauge(
        "sbus_user_backlog_limit_bytes",
        "How much may be kept for it.",
        of_user(lambda user: user.limits.backlog_bytes_max),
        *USER,
        unit="bytes",
    ),
    gauge(
        "sbus_user_waiting_bytes",
        "What was read of the user's clients and has to wait.",
        of_user(lambda user: user.waiting_bytes),
        *USER,
        unit="bytes",
    ),
    gauge(
        "sbus_user_blocking_clients",
        "Clients of the user that may hold publishers back.",
        of_user(lambda user: user.blocking_clients),
        *USER,
    ),
    gauge(
        "sbus_user_held_seconds",
        "For how long the user's clients held publishers back in the last minute.",
        of_user(lambda user: user.held_seconds),
        *USER,
        unit="seconds",
    ),
    counter(
        "sbus_user_discarded_total",
        "Messages for the user's clients that were not delivered because they were too slow.",
        of_user(lambda user: user.discarded),
        *USER,
    ),
)
"""Every metric there is, in the order of the text."""
