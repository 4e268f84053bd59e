"""`format("sbus")`: the first that Spark asks, and the reader or writer for each use.

Spark makes a `DefaultSource` in every process that needs one, so it holds the options and opens
nothing. `schema` is the first question about a read, in the user's own call, so that is where
mistakes in the options are reported.

When Spark reads a catalog's table (`CREATE TABLE … USING sbus`), it does not pass the options that
the table was created with, only its columns. So those are kept in the metadata of the first column.

A data source in Python is not told which columns a query uses. A reader with a schema of its own, a
choice of the columns, is sent only those.
"""

from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSource
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from sbus.errors import ConfigurationError
from sbus.pipeline.spark.options import (
    SourceOptions,
    check_batch,
    check_stream,
    sink_options,
    source_options,
    table_options,
)
from sbus.pipeline.spark.publication import publication
from sbus.pipeline.spark.readers import BatchReader, RefusedStream, StreamReader
from sbus.pipeline.spark.sink import BatchWriter, StreamWriter
from sbus.pipeline.spark.staging import Staging
from sbus.pipeline.store.reader import Recording
from sbus.pipeline.store.schemas import TABLES

_TABLE_OPTIONS = "sbus.options"


class DefaultSource(DataSource):
    """The bus and its recordings; the options are in `options.py`."""

    @classmethod
    def name(cls) -> str:
        return "sbus"

    def schema(self) -> StructType:
        columns = from_arrow_schema(TABLES[_options(self.options).table])
        if (of_table := table_options(self.options)) is not None:
            columns[0].metadata = {_TABLE_OPTIONS: of_table}
        return columns

    def reader(self, schema: StructType) -> BatchReader:
        options = _options(self.options, schema)
        check_batch(options)
        return BatchReader(options, _arrow_schema(schema, options.table))

    def streamReader(self, schema: StructType) -> StreamReader | RefusedStream:
        try:
            options = _options(self.options, schema)
            check_stream(options)
            return StreamReader(options, _arrow_schema(schema, options.table))
        except ConfigurationError as error:
            return RefusedStream(error)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        return BatchWriter(publication(sink_options(self.options), schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        options = sink_options(self.options)
        if options.checkpoint is None:
            raise ConfigurationError(
                "give the option checkpointLocation: what is published is noted there"
            )
        return StreamWriter(publication(options, schema, overwrite), Staging(options.checkpoint))


def _options(given: Mapping[str, str], schema: StructType | None = None) -> SourceOptions:
    """These options, and those of the catalog's table that has this schema.

    Raises ConfigurationError, also if there is nothing to read.
    """
    of_table = schema[0].metadata.get(_TABLE_OPTIONS, {}) if schema else {}
    options = source_options({**of_table, **given})
    Recording(options.path).check()
    return options


def _arrow_schema(schema: StructType, table: str) -> pa.Schema:
    """What Spark expects to be sent for these columns of a table.

    Raises ConfigurationError if the table has no such column, or it is of another type.
    """
    whole = from_arrow_schema(TABLES[table])
    for field in schema.fields:
        if field.name not in whole.names:
            raise ConfigurationError(
                f"the table {table} has no column {field.name!r}: "
                f"there are {', '.join(whole.names)}"
            )
        kind = whole[field.name].dataType
        if field.dataType != kind:
            raise ConfigurationError(
                f"the column {field.name} of the table {table} is {kind.simpleString()}, "
                f"not {field.dataType.simpleString()}: read it so, and cast it"
            )
    return to_arrow_schema(schema, timezone="UTC")
