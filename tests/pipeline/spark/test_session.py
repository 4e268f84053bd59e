"""What the session has Spark's processes do."""

from collections.abc import Iterator

import pyarrow as pa
import pyspark
from pyspark.sql import SparkSession


def imported_from(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"path": [pyspark.__file__]})


def test_python_processes_do_not_compile_the_modules_of_spark(spark: SparkSession) -> None:
    """They import those whose bytecode is on disk, and not those in a zip."""
    paths = spark.range(1).mapInArrow(imported_from, "path STRING").toArrow()
    assert paths["path"].to_pylist() == [pyspark.__file__]
