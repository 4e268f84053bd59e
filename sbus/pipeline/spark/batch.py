"""A read that ends: the rows that are in a recording now, or some of them.

What is read is settled once, when the query is planned: later rows are not in it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from sbus.pipeline.recording import Piece
from sbus.pipeline.spark.options import EARLIEST, LATEST, Bound, SourceOptions
from sbus.pipeline.spark.planning import pieces, resolve, share
from sbus.pipeline.spark.rows import rows
from sbus.pipeline.spark.watching import Watch


@dataclass
class Share(InputPartition):
    """What one task reads."""

    pieces: list[Piece]


class BatchReader(DataSourceReader):
    """Planned on the driver, read wherever the directory is."""

    def __init__(self, options: SourceOptions, schema: pa.Schema, path: str) -> None:
        self._options = options
        self._schema = schema
        self._path = path

    def partitions(self) -> list[InputPartition]:
        options = self._options
        found = Watch(self._path, options.table).tables()
        start = resolve(options.starting or Bound("startingOffsets", EARLIEST), found)
        end = resolve(options.ending or Bound("endingOffsets", LATEST), found)
        planned = pieces(found, start, end, fail_on_data_loss=options.fail_on_data_loss)
        # Spark reads a None where there is nothing.
        return [Share(part) for part in share(planned, options.partitions_min)] or [Share([])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Share)
        return rows(partition.pieces, self._schema, self._options.patterns)
