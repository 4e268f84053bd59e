"""A Parquet file of sealed rows.

A file has rows of one date, host and recording. It is on disk when it is finished, with the names
that lead to it; a commit that lists it comes later. So a power failure never leaves a table that
lists a file without its rows.
"""

import json
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.transaction import AddAction
from pyarrow.fs import LocalFileSystem

from sbus.pipeline.store.schemas import FILE_SCHEMAS, conform
from sbus.pipeline.store.stored_file import file_system
from sbus.unix.durable_files import sync

_ROW_GROUP_ROWS = 131_072
_ROW_GROUP_BYTES = 32 * 1024 * 1024


class SealedFileWriter:
    """Writes the file `name` of these rows in the table at `uri`."""

    """Writes the Parquet file of one date."""

    def __init__(
        self,
        uri: str,
        table: str,
        partition: dict[str, str],
        name: str,
        bus: str | None = None,
        *,
        changes_data: bool = True,
    ) -> None:
        """`partition` has the columns of `PARTITIONS`. `bus` is for rows without that column."""
        self._partition = partition
        self._changes_data = changes_data
        folder = "/".join(f"{key}={quote(value, safe='')}" for key, value in partition.items())
        self._path = f"{folder}/{name}.parquet"
        self._files, base = file_system(uri)
        self._target = f"{base}/{self._path}"
        self._schema = FILE_SCHEMAS[table]
        self._known = {"bus": bus}
        self._files.create_dir(f"{base}/{folder}", recursive=True)
        self._stream = self._files.open_output_stream(self._target)
        self._parquet = pq.ParquetWriter(self._stream, self._schema, compression="zstd")
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._rows = self._written_rows = 0
        self._bounds: dict[str, list[Any]] = {"offset": [], "timestamp": []}

    def write(self, rows: pa.RecordBatch) -> None:
        self._waiting.append(conform(rows, self._schema, self._known))
        self._waiting_bytes += rows.nbytes
        self._rows += rows.num_rows
        for name, bounds in self._bounds.items():
            bounds += pc.min_max(rows[name]).as_py().values()
        waiting_rows = self._rows - self._written_rows
        if waiting_rows >= _ROW_GROUP_ROWS or self._waiting_bytes >= _ROW_GROUP_BYTES:
            self._write_group()

    def _write_group(self) -> None:
        if self._waiting:
            self._parquet.write_table(pa.Table.from_batches(self._waiting))
        self._waiting.clear()
        self._waiting_bytes = 0
        self._written_rows = self._rows

    def finish(self) -> AddAction:
        """Bring the file to disk; it is not listed yet."""
        self._write_group()
        self._parquet.close()
        size = self._stream.tell()
        self._stream.close()
        if isinstance(self._files, LocalFileSystem):
            path = Path(self._target)
            for part in (path, *path.parents[: len(self._partition) + 2]):
                sync(part)
        return AddAction(
            path=self._path,
            size=size,
            partition_values=self._partition,
            modification_time=time.time_ns() // 1_000_000,
            data_change=self._changes_data,
            stats=self._statistics(),
        )

    def _statistics(self) -> str:
        """What the table says of the file, so that readers can skip it."""
        offsets, moments = self._bounds["offset"], self._bounds["timestamp"]
        newest = max(moments) + timedelta(microseconds=999)
        return json.dumps(
            {
                "numRecords": self._rows,
                "minValues": {"offset": min(offsets), "timestamp": _in_milliseconds(min(moments))},
                "maxValues": {"offset": max(offsets), "timestamp": _in_milliseconds(newest)},
            }
        )

    def __enter__(self) -> "SealedFileWriter":
        return self

    def __exit__(self, *error: object) -> None:
        # Unless it is finished, nothing more is to be written to it.
        self._parquet.is_open = False
        self._stream.close()


def _in_milliseconds(moment: datetime) -> str:
    """As Delta writes times, rounded down."""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
