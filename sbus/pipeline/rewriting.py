"""Making Parquet of segments, and large Parquet files of small ones.

Both are the same: the rows of some files of one table are written anew, by date (UTC) of their
timestamp, one file for each, and take the place of those in the manifest at once. Until then nobody
knows of them; from then on nobody is told of the old ones, which are deleted later. Within a file
rows keep the order of their offsets.

It may be done while the recorder writes, and by any program. Knows nothing of buses.
"""

import os
import threading
from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sbus.errors import ConfigurationError, SbusError
from sbus.pipeline import manifest
from sbus.pipeline.arrow_columns import numbers, of_flags
from sbus.pipeline.manifest import FileEntry, Manifest, sync_directory
from sbus.pipeline.recording import TableSnapshot, read
from sbus.pipeline.schemas import TABLES

_ROW_GROUP_ROWS = 131_072
_ROW_GROUP_BYTES = 32 * 1024 * 1024
_DAY_US = 86_400_000_000
_EPOCH = date(1970, 1, 1)


class Interrupted(SbusError):
    """It was asked to stop; nothing has changed."""


def rewrite(
    directory: Path,
    recorder: str,
    table: str,
    files: Sequence[FileEntry],
    *,
    generation: int = 0,
    stop: threading.Event | None = None,
) -> list[FileEntry]:
    """Replace complete files of a table, and return the entries of those that hold their rows now.

    `generation` is one more than that of any file that it replaces, 0 for segments. Raises
    ConfigurationError when the manifest does not list these files (any more), OSError, Interrupted
    when `stop` is set; then everything is as it was.
    """
    before = manifest.load(directory, recorder)
    _check_listed(before, table, files)
    writers: dict[date, _DayWriter] = {}
    try:
        for batch in _rows_of(directory, table, files):
            if stop is not None and stop.is_set():
                raise Interrupted("stopped before the end")
            for day, rows in _by_day(batch):
                if day not in writers:
                    writers[day] = _DayWriter(directory, before, table, day)
                writers[day].write(rows)
        new = [writer.finish(generation) for writer in writers.values()]
    except BaseException:
        for writer in writers.values():
            writer.abandon()
        raise
    replace(directory, recorder, table, files, new)
    return new


def replace(
    directory: Path, recorder: str, table: str, old: Sequence[FileEntry], new: Sequence[FileEntry]
) -> None:
    """List `new` files in the place of `old` ones: the same rows in other files.

    Raises ConfigurationError when they are not the same rows, or an old one is not listed.
    """
    if _offsets(old) != _offsets(new):
        raise ConfigurationError(
            f"{table} of {recorder}: the new files do not hold the same offsets as the old ones"
        )
    with manifest.edit(directory, recorder) as change:
        _check_listed(change.manifest, table, old)
        gone = {file.path for file in old}
        listed = change.table(table)
        kept = [file for file in listed.files if file.path not in gone]
        change.set_table(table, listed.earliest, [*kept, *new])


def _check_listed(listed: Manifest, table: str, files: Sequence[FileEntry]) -> None:
    known = {file.path for file in listed.tables[table].files} if table in listed.tables else set()
    for file in files:
        if file.end is None or file.path not in known:
            raise ConfigurationError(
                f"{file.path} is not, or not any more, a complete file of {listed.recorder}"
            )


def _offsets(files: Sequence[FileEntry]) -> list[tuple[int, int]]:
    """All offsets in them, as few spans as there can be."""
    return joined(span for file in files for span in file.spans)


def joined(spans: Iterator[tuple[int, int]] | Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Spans in order, those that touch made one."""
    whole: list[tuple[int, int]] = []
    for first, end in sorted(spans):
        if whole and whole[-1][1] == first:
            whole[-1] = (whole[-1][0], end)
        else:
            whole.append((first, end))
    return whole


def _rows_of(directory: Path, table: str, files: Sequence[FileEntry]) -> Iterator[pa.RecordBatch]:
    for file in sorted(files, key=lambda file: file.first):
        only = TableSnapshot(str(directory), table, 0, 0, (file,))
        assert file.end is not None
        for piece in only.plan(file.first, file.end):
            yield from read(piece)


def host_folder(host: str) -> str:
    """The name of the directory of a host's files, as Hive and Spark escape it."""
    return f"host={quote(host, safe='')}"


def _by_day(batch: pa.RecordBatch) -> Iterator[tuple[date, pa.RecordBatch]]:
    days = numbers(batch["timestamp"]) // _DAY_US
    if days[0] == days[-1] and (days == days[0]).all():
        yield _EPOCH + timedelta(days=int(days[0])), batch
        return
    for day in np.unique(days):
        yield _EPOCH + timedelta(days=int(day)), batch.filter(of_flags(days == day))


class _DayWriter:
    """A Parquet file of one date, under a name that no reader looks at until it is finished."""

    def __init__(self, directory: Path, origin: Manifest, table: str, day: date) -> None:
        self._directory = directory
        self._origin = origin
        self._folder = directory / table / f"date={day.isoformat()}" / host_folder(origin.host)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._temporary = self._folder / f".{origin.recorder}-{os.getpid()}-{threading.get_ident()}"
        self._file = self._temporary.open("wb")
        self._parquet = pq.ParquetWriter(self._file, TABLES[table], compression="zstd")
        self._waiting: list[pa.RecordBatch] = []
        self._spans: list[tuple[int, int]] = []
        self._oldest_us: list[int] = []
        self._newest_us: list[int] = []

    def write(self, rows: pa.RecordBatch) -> None:
        """Rows with rising offsets, behind those of before."""
        offsets = numbers(rows["offset"])
        breaks = np.flatnonzero(np.diff(offsets) != 1) + 1
        for part in np.split(offsets, breaks):
            self._spans.append((int(part[0]), int(part[-1]) + 1))
        self._spans = joined(self._spans)
        stamps_us = numbers(rows["timestamp"])
        self._oldest_us.append(int(stamps_us.min()))
        self._newest_us.append(int(stamps_us.max()))
        self._waiting.append(rows)
        if (
            sum(batch.num_rows for batch in self._waiting) >= _ROW_GROUP_ROWS
            or sum(batch.nbytes for batch in self._waiting) >= _ROW_GROUP_BYTES
        ):
            self._write_group()

    def _write_group(self) -> None:
        if self._waiting:
            self._parquet.write_table(pa.Table.from_batches(self._waiting))
        self._waiting.clear()

    def finish(self, generation: int) -> FileEntry:
        """Give the file its name; it is on disk, and not listed."""
        self._write_group()
        self._parquet.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        size = self._file.tell()
        self._file.close()
        first, end = self._spans[0][0], self._spans[-1][1]
        suffix = f"-g{generation}" if generation else ""
        name = f"{self._origin.recorder}-{first:020}-{end - 1:020}{suffix}.parquet"
        self._temporary.rename(self._folder / name)
        for folder in (self._folder, *self._folder.parents[:3]):
            sync_directory(folder)
        return FileEntry(
            path=str((self._folder / name).relative_to(self._directory)),
            kind="parquet",
            first=first,
            end=end,
            rows=sum(b - a for a, b in self._spans),
            bytes=size,
            min_timestamp_us=min(self._oldest_us),
            max_timestamp_us=max(self._newest_us),
            ranges=self._spans if len(self._spans) > 1 else None,
        )

    def abandon(self) -> None:
        """Leave nothing that has not been finished."""
        self._file.close()
        self._temporary.unlink(missing_ok=True)
