"""How far streaming queries are behind a recording: in the log, and as metrics for Prometheus.

    listener = LagListener("/var/lib/sbus/recording")
    spark.streams.addListener(listener)
    prometheus_client.REGISTRY.register(listener)

Lag is measured against the recording as it is when somebody asks. So it also grows while a query
hangs, and after it failed.
"""

import json
import logging
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from sbus.pipeline.spark.planning import Offsets, ends, waiting
from sbus.pipeline.store.reader import TableCache, Tables

if TYPE_CHECKING:
    from prometheus_client.core import GaugeMetricFamily

_log = logging.getLogger(__name__)


class Lag(NamedTuple):
    rows: int
    """Not read yet, whether the query wants them or not."""
    seconds: float
    """The age of the oldest of them; 0 if there are none."""


def lag_of(found: Tables, offsets: Offsets, now: float) -> Lag:
    """Of a query with these offsets, at a time in seconds since 1970."""
    rows = waiting(offsets, ends(found), found)
    oldest_us = [
        found[name].timestamp_us(found[name].end - count) for name, count in rows.items() if count
    ]
    return Lag(sum(rows.values()), now - min(oldest_us) / 1e6 if oldest_us else 0.0)


class LagListener(StreamingQueryListener):
    """Follows the queries that read this table; those that ended well are forgotten."""

    def __init__(
        self, location: str, table: str = "messages", now: Callable[[], float] = time.time
    ) -> None:
        self._now = now
        self._cache = TableCache(location, table)
        self._offsets: dict[str, tuple[str, Offsets]] = {}
        """For the id of each query its name and how far it has read."""

    def lags(self) -> dict[str, Lag]:
        """For each query, by its name or else its id."""
        found, now = self._cache.tables(), self._now()
        return {name: lag_of(found, offsets, now) for name, offsets in [*self._offsets.values()]}

    def collect(self) -> "Iterator[GaugeMetricFamily]":
        """The metrics, as `prometheus_client` asks for them."""
        from prometheus_client.core import GaugeMetricFamily

        lags = self.lags()
        for field, meaning in (
            ("rows", "Recorded rows that the query has not read."),
            ("seconds", "Age of the oldest row that the query has not read."),
        ):
            family = GaugeMetricFamily(f"sbus_stream_lag_{field}", meaning, labels=["query"])
            for name, lag in lags.items():
                family.add_metric([name], getattr(lag, field))
            yield family

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Its offsets are known with its first batch."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        name = progress.name or str(progress.id)
        for source in progress.sources:
            try:
                offsets = json.loads(source.endOffset)
            except json.JSONDecodeError:
                continue  # it is another source; before its first data it has the offset "None"
            found = self._cache.tables()
            if isinstance(offsets, dict) and offsets.keys() & found.keys():
                self._offsets[str(progress.id)] = name, offsets
                lag = lag_of(found, offsets, self._now())
                _log.info("%s is %d rows and %.1f s behind", name, lag.rows, lag.seconds)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        if event.exception is None:
            self._offsets.pop(str(event.id), None)
