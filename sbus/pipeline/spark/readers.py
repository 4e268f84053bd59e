"""Reading a recording as a batch and as a stream.

A batch reads the rows that are there when it is planned; later rows are not in it.

A stream's offset is `{"recorder@incarnation": next}`. Spark has the offsets of a batch in its
checkpoint before it reads the batch, and the same offsets always give the same rows. So a sink that
is idempotent by batch (files, tables) has each row exactly once, whatever crashes in between. A
recorder that appears while the stream runs is read from its beginning. The reader remembers only
the goal of a run that ends (`Trigger.AvailableNow`), and what is shown as progress.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from sbus.errors import ConfigurationError
from sbus.pipeline.spark import planning
from sbus.pipeline.spark.options import EARLIEST, LATEST, Bound, SourceOptions
from sbus.pipeline.spark.planning import Offsets
from sbus.pipeline.spark.task_rows import rows
from sbus.pipeline.store.reader import TableCache, Tables
from sbus.pipeline.store.stored_file import Piece


@dataclass
class RecordingPartition(InputPartition):
    """What one task reads."""

    pieces: list[Piece]


class _RecordingReader:
    """What both readers share: planning on the driver, and reading wherever the directory is."""

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._cache = TableCache(options.path, options.table)

    def _plan(self, found: Tables, start: Offsets, end: Offsets) -> list[InputPartition]:
        options = self._options
        planned = planning.pieces(found, start, end, fail_on_data_loss=options.fail_on_data_loss)
        chosen = [it for it in planned if it.file.may_hold(None, None, options.host_names)]
        tasks = planning.share(chosen, options.min_partitions, options.max_records_per_partition)
        return [RecordingPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RecordingPartition)
        return rows(partition.pieces, self._schema, self._options.patterns)


class BatchReader(_RecordingReader, DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        options, found = self._options, self._cache.tables()
        start = planning.resolve(options.starting or Bound("startingOffsets", EARLIEST), found)
        end = planning.resolve(options.ending or Bound("endingOffsets", LATEST), found)
        planning.check_range(start, end)
        # For an empty list Spark would read a partition `None`.
        return self._plan(found, start, end) or [RecordingPartition([])]


class RefusedStream(DataSourceStreamReader):
    """A stream that fails for this reason. If `streamReader` raised it, Spark would report an error
    of its own (an UnboundLocalError)."""

    def __init__(self, reason: ConfigurationError) -> None:
        self._reason = reason

    def getDefaultReadLimit(self) -> ReadLimit:
        """Spark asks this before anything else."""
        raise self._reason

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise self._reason


class StreamReader(_RecordingReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        super().__init__(options, schema)
        self._goal: Offsets | None = None
        self._newest: Offsets | None = None
        self._triggered_at = -math.inf

    def initialOffset(self) -> Offsets:
        starting = self._options.starting or Bound("startingOffsets", LATEST)
        return planning.resolve(starting, self._cache.tables())

    def getDefaultReadLimit(self) -> ReadLimit:
        if (rows_max := self._options.max_offsets_per_trigger) is not None:
            return ReadMaxRows(rows_max)
        rows_min = self._options.min_offsets_per_trigger
        return ReadAllAvailable() if rows_min is None else ReadMinRows(rows_min)

    def prepareForTriggerAvailableNow(self) -> None:
        self._goal = planning.ends(self._cache.tables())

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        """Spark has one limit, so `maxOffsetsPerTrigger` brings `minOffsetsPerTrigger` along."""
        found = self._cache.tables()
        self._newest = planning.ends(found)
        goal = self._newest if self._goal is None else self._goal
        # A recorder whose directory has gone stays where it was, unless it has begun anew.
        gone = planning.begun_anew(start, found)
        end = {name: offset for name, offset in {**start, **goal}.items() if name not in gone}
        if isinstance(limit, ReadAllAvailable):
            return end
        rows = sum(planning.waiting(start, end, found).values())
        if self._goal is None and self._is_early(rows):
            return start
        if isinstance(limit, ReadMaxRows):
            return planning.advance(start, end, found, limit.max_rows)
        return end

    def _is_early(self, rows: int) -> bool:
        """Whether a batch of so many rows is to wait for more. The first one is not."""
        rows_min, now = self._options.min_offsets_per_trigger or 0, time.monotonic()
        is_due = now - self._triggered_at >= self._options.trigger_delay_seconds_max
        if rows < rows_min and not is_due:
            return True
        if rows:
            self._triggered_at = now
        return False

    def reportLatestOffset(self) -> Offsets | None:
        return self._newest

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        return self._plan(self._cache.tables(), start, end)
