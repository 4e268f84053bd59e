"""A recording, or a part of it, as Spark reads it best.

Spark scans the sealed files itself, as it does any Parquet, and skips what a query does not need.
Files that cannot hold the selected times and hosts are not even listed. The rows that are not
sealed yet come from `format("sbus")`, and so does everything of a table at a URI, because Spark
often lacks the libraries for one; of that, too, only the needed files are read.
"""

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import reduce
from typing import Literal

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from sbus.pipeline.store.reader import Recording, Tables
from sbus.pipeline.store.schemas import FILE_SCHEMAS, PARTITIONS, TABLES, timestamp_us
from sbus.pipeline.store.stored_file import StoredFile

Table = Literal["messages", "clients", "events"]


def read(
    spark: SparkSession,
    location: str,
    table: Table = "messages",
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    hosts: Sequence[str] = (),
) -> DataFrame:
    """The rows that a table has now, with its columns.

    They are those from `since` until before `until` of these hosts; None and () mean all. A time
    without a zone is in UTC. Files of the frame remain for the recorders' grace period.
    """
    since_us, until_us = (None if at is None else timestamp_us(at) for at in (since, until))
    recording = Recording(location)
    tables = recording.tables(table)
    files = [file for snapshot in tables.values() for file in snapshot.files if file.rows]
    needed = [file for file in files if file.may_hold(since_us, until_us, hosts)]
    if any("://" in file.path for file in files):
        scanned, rest = [], needed
    else:
        scanned = [file for file in needed if file.is_sealed]
        rest = [file for file in needed if not file.is_sealed]
    found = _scan(spark, table, scanned, by_host=recording.is_by_host)
    if rest:
        source = spark.read.format("sbus").option("table", table)
        found = found.unionByName(source.options(**offsets_of(rest, tables)).load(location))
    if since_us is not None:
        found = found.where(F.col("timestamp") >= F.timestamp_micros(F.lit(since_us)))
    if until_us is not None:
        found = found.where(F.col("timestamp") < F.timestamp_micros(F.lit(until_us)))
    return found.where(F.col("host").isin(*hosts)) if hosts else found


def _scan(
    spark: SparkSession, table: Table, files: Iterable[StoredFile], *, by_host: bool
) -> DataFrame:
    """Sealed files, read by Spark. Those `by_host` are each of the host that the recording says."""
    schema = from_arrow_schema(pa.schema([*FILE_SCHEMAS[table], *PARTITIONS]))
    paths: dict[tuple[str, str | None], list[str]] = {}
    for file in files:
        root = file.path.rpartition("/date=")[0]
        paths.setdefault((root, file.host if by_host else None), []).append(file.path)
    frames = []
    for (root, host), own in paths.items():
        frame = spark.read.schema(schema).option("basePath", root).parquet(*own)
        frames.append(frame if host is None else frame.withColumn("host", F.lit(host)))
    found = reduce(DataFrame.unionByName, frames) if frames else spark.createDataFrame([], schema)
    return found.select(*TABLES[table].names)


def offsets_of(files: Iterable[StoredFile], tables: Tables) -> dict[str, str]:
    """The options for the rows of these files, of each recorder from the first to the last."""
    starts = {name: snapshot.end for name, snapshot in tables.items()}
    ends = dict.fromkeys(tables, 0)
    for file in files:
        name = file.qualified_name
        starts[name] = min(starts[name], file.first)
        ends[name] = max(ends[name], file.end)
    ends = {name: end or starts[name] for name, end in ends.items()}
    return {"startingOffsets": json.dumps(starts), "endingOffsets": json.dumps(ends)}
