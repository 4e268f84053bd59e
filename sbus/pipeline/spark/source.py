"""`format("sbus")`: what Spark asks first, and who answers for each way to use it.

Spark makes a `DefaultSource` anew in every process that needs one, so it holds the options and
nothing else, and opens nothing. `schema` is the first that is asked of a read, in the user's own
call: whatever is wrong with the options is said there.
"""

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
)
from pyspark.sql.types import StructType

from sbus.pipeline.recording import Recording
from sbus.pipeline.spark.batch import BatchReader
from sbus.pipeline.spark.columns import arrow_schema, spark_schema
from sbus.pipeline.spark.live import LiveReader
from sbus.pipeline.spark.options import (
    SourceOptions,
    check_batch,
    check_stream,
    sink_options,
    source_options,
)
from sbus.pipeline.spark.sink import BatchWriter, StreamWriter, publication
from sbus.pipeline.spark.spool import SpoolReader
from sbus.pipeline.spark.stream import StreamReader


class DefaultSource(DataSource):
    """The bus and its recordings; the options are in `options.py`."""

    @classmethod
    def name(cls) -> str:
        return "sbus"

    def schema(self) -> StructType:
        return spark_schema(self._source().table)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._source()
        check_batch(options)
        assert options.path is not None
        return BatchReader(options, arrow_schema(schema, options.table), options.path)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = self._source()
        check_stream(options)
        columns = arrow_schema(schema, options.table)
        if options.path is not None:
            return StreamReader(options, columns, options.path)
        if options.spool_dir is not None:
            return SpoolReader(options, columns, options.spool_dir)
        return LiveReader(options, columns)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return BatchWriter(publication(sink_options(self.options), schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return StreamWriter(publication(sink_options(self.options), schema, overwrite))

    def _source(self) -> SourceOptions:
        options = source_options(self.options)
        if options.path is not None:
            Recording(options.path)
        return options
