"""Of what kind a metric is, and where its samples are in what a bus answered.

A family is described by a name, a meaning and a function that finds its samples; the functions for
the usual places (the bus, each worker, each user) are here as well. This module does not know which
metrics there are.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

from sbus.cli.terminal.user_names import user_name
from sbus.protocol.admin_results import (
    Fill,
    Latency,
    StatsResult,
    Traffic,
    UserReport,
    VersionResult,
    WorkerReport,
)
from sbus.protocol.text import to_text

USER = ("uid", "user")
"""Labels of what a user has; names alone could be the same."""
Sample = tuple[tuple[str, ...], float]
"""Values of the labels, and the figure."""
Unit = Literal["", "bytes", "seconds"]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a bus answered. `users` are those to be shown, and `users_left_out` others."""

    version: VersionResult
    stats: StatsResult
    users: list[UserReport]
    users_left_out: int


Samples = Callable[[Snapshot], Iterable[Sample]]


@dataclass(frozen=True, slots=True)
class Family:
    """One metric; `collect` puts the samples of a snapshot into a family of the library's."""

    name: str
    """As in the text, with the suffix of its kind; a histogram's, which has several, without."""
    kind: str
    unit: str
    labels: tuple[str, ...]
    meaning: str
    collect: Callable[[Snapshot], Metric]


# -- where samples are -----------------------------------------------------------------------------
def of_bus(get: Callable[[StatsResult], float]) -> Samples:
    return lambda snapshot: [((), get(snapshot.stats))]


def of_fill(get: Callable[[StatsResult], Fill | None], part: Callable[[Fill], int]) -> Samples:
    """No sample where it is not known how full it is."""

    def samples(snapshot: Snapshot) -> Iterable[Sample]:
        fill = get(snapshot.stats)
        return [] if fill is None else [((), part(fill))]

    return samples


def by_name(known: Iterable[str], get: Callable[[StatsResult], dict[str, int]]) -> Samples:
    """Counts by names, those `known` in any case."""
    zeros = dict.fromkeys(known, 0)

    def samples(snapshot: Snapshot) -> Iterable[Sample]:
        counts = zeros | get(snapshot.stats)
        return [((name,), count) for name, count in counts.items()]

    return samples


def of_worker(get: Callable[[WorkerReport], float]) -> Samples:
    return lambda snapshot: [((str(each.worker),), get(each)) for each in snapshot.stats.workers]


def of_traffic(get: Callable[[Traffic], float]) -> Samples:
    return of_worker(lambda each: get(each.traffic))


def of_user(get: Callable[[UserReport], float]) -> Samples:
    return lambda snapshot: [(_who(each.uid), get(each)) for each in snapshot.users]


def _who(uid: int) -> tuple[str, str]:
    """The values of the labels `USER`."""
    return str(uid), to_text(os.fsencode(user_name(uid)))


# -- kinds -----------------------------------------------------------------------------------------
def counter(name: str, meaning: str, samples: Samples, *labels: str, unit: Unit = "") -> Family:
    def collect(snapshot: Snapshot) -> Metric:
        metric = CounterMetricFamily(name, meaning, labels=labels, unit=unit)
        for values, figure in samples(snapshot):
            metric.add_metric(values, figure)
        return metric

    return Family(name, "counter", unit, labels, meaning, collect)


def gauge(name: str, meaning: str, samples: Samples, *labels: str, unit: Unit = "") -> Family:
    def collect(snapshot: Snapshot) -> Metric:
        metric = GaugeMetricFamily(name, meaning, labels=labels, unit=unit)
        for values, figure in samples(snapshot):
            metric.add_metric(values, figure)
        return metric

    return Family(name, "gauge", unit, labels, meaning, collect)


def worker_latency(name: str, meaning: str) -> Family:
    def collect(snapshot: Snapshot) -> Metric:
        metric = HistogramMetricFamily(name, meaning, labels=["worker"], unit="seconds")
        for each in snapshot.stats.workers:
            latency = each.traffic.latency
            metric.add_metric([str(each.worker)], _buckets(latency), latency.sum_us / 1e6)
        return metric

    return Family(name, "histogram", "seconds", ("worker",), meaning, collect)


def _buckets(latency: Latency) -> list[tuple[str, float]]:
    """Upper bounds in seconds, as text, and how many took at most so long."""
    bounds = [*(repr(bound_us / 1e6) for bound_us in latency.bounds_us), "+Inf"]
    return list(zip(bounds, accumulate(latency.counts), strict=True))


def build_info(name: str, meaning: str) -> Family:
    labels = ("version", "protocol", "python", "dialect", "address")

    def collect(snapshot: Snapshot) -> Metric:
        values = {label: str(getattr(snapshot.version, label)) for label in labels}
        return InfoMetricFamily(name.removesuffix("_info"), meaning, values)

    return Family(name, "info", "", labels, meaning, collect)
