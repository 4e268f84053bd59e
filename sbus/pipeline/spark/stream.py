"""A stream over a recording: durable, and replayable from any offset that is kept.

Its offset is `{"recorder": next}`. The offsets of a batch are in Spark's checkpoint before it is
read, and the same offsets always give the same rows, so a sink that is idempotent by batch (files,
tables) has each row exactly once, whatever dies in between. A recorder that appears while the
stream runs is read from its beginning.

Nothing is remembered here from one call to the next but the goal of a run that ends
(`Trigger.AvailableNow`) and what is shown as progress.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from sbus.pipeline.spark.batch import Share
from sbus.pipeline.spark.options import LATEST, Bound, SourceOptions
from sbus.pipeline.spark.planning import (
    Offsets,
    advance,
    ends,
    pieces,
    resolve,
    share,
)
from sbus.pipeline.spark.rows import rows
from sbus.pipeline.spark.watching import Tables, Watch


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Asked on the driver; only `read` runs elsewhere."""

    def __init__(self, options: SourceOptions, schema: pa.Schema, path: str) -> None:
        self._options = options
        self._schema = schema
        self._watch = Watch(path, options.table)
        self._goal: Offsets | None = None
        self._newest: Offsets | None = None

    def initialOffset(self) -> Offsets:
        starting = self._options.starting or Bound("startingOffsets", LATEST)
        return resolve(starting, self._tables())

    def getDefaultReadLimit(self) -> ReadLimit:
        rows_max = self._options.offsets_per_trigger_max
        return ReadAllAvailable() if rows_max is None else ReadMaxRows(rows_max)

    def prepareForTriggerAvailableNow(self) -> None:
        self._goal = ends(self._tables())

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        found = self._tables()
        self._newest = ends(found)
        goal = self._newest if self._goal is None else self._goal
        # A recorder whose directory has gone stays where it was.
        end = {**start, **goal}
        return advance(start, end, found, limit.max_rows) if isinstance(limit, ReadMaxRows) else end

    def reportLatestOffset(self) -> Offsets | None:
        return self._newest

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        found = self._tables()
        planned = pieces(found, start, end, fail_on_data_loss=self._options.fail_on_data_loss)
        return [Share(part) for part in share(planned, self._options.partitions_min)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Share)
        return rows(partition.pieces, self._schema, self._options.patterns)

    def _tables(self) -> Tables:
        return self._watch.tables()
