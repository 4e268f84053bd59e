"""Rewriting a recording: sealing segment files, and compacting small Parquet files.

Both write the rows of some files of one table into new Parquet files, one for each date (UTC) of
the timestamps, and then replace the old files in the manifest at once. Until then no reader knows
the new files; afterwards no reader is told of the old ones. Within a file rows keep the order of
their offsets.

Any program may do it while recorders write and others read. If two rewrite the same files, one of
them fails.
"""

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sbus.errors import ConfigurationError, SbusError
from sbus.pipeline.store import manifest
from sbus.pipeline.store.arrow_columns import numbers, of_flags
from sbus.pipeline.store.manifest import FileEntry, Manifest, sync_directory
from sbus.pipeline.store.reader import Recording, TableSnapshot, read
from sbus.pipeline.store.schemas import TABLES
from sbus.pipeline.store.segment_file import RecordingDamaged

COMPACT_BYTES = 128 * 1024 * 1024
_ROW_GROUP_ROWS = 131_072
_ROW_GROUP_BYTES = 32 * 1024 * 1024
_DAY_US = 86_400_000_000
_EPOCH = date(1970, 1, 1)


class Interrupted(SbusError):
    """Rewriting was asked to stop; nothing has changed."""


# -- which files to rewrite ------------------------------------------------------------------------
def seal(directory: Path, recorder: str, stop: threading.Event | None = None) -> None:
    """Convert every complete segment file to Parquet.

    Raises Interrupted when `stop` is set. A file that cannot be converted does not keep the others
    from it; RecordingDamaged or OSError is raised for the first such file at the end.
    """
    failure: SbusError | OSError | None = None
    for name, table in manifest.load(directory, recorder).tables.items():
        for file in table.files:
            if file.kind == "hot" and file.end is not None:
                try:
                    rewrite(directory, recorder, name, [file], stop=stop)
                except (RecordingDamaged, OSError) as error:
                    failure = failure or error
    if failure is not None:
        raise failure


def compact(
    directory: Path, *, before: date | None = None, small_bytes: int = COMPACT_BYTES
) -> list[FileEntry]:
    """Merge small Parquet files of dates before `before`, by default the current date in UTC, into
    files of at most `small_bytes`; returns the entries of the new files.

    Files of dates that are not over are left alone, because more rows will come. Raises
    ConfigurationError, OSError, RecordingDamaged.
    """
    until = before or datetime.now(UTC).date()
    new = []
    recording = Recording(directory)
    recording.check()
    for recorder in recording.recorders():
        for name, table in manifest.load(directory, recorder).tables.items():
            for group in mergeable(table.files, until, small_bytes):
                generation = 1 + max(map(_generation, group))
                new += rewrite(directory, recorder, name, group, generation=generation)
    return new


def mergeable(files: Iterable[FileEntry], until: date, small_bytes: int) -> list[list[FileEntry]]:
    """Groups of two or more consecutive Parquet files of one date that fit into one file."""
    by_date: dict[date, list[list[FileEntry]]] = {}
    for file in files:
        if file.kind != "parquet" or (day := _date(file)) >= until:
            continue
        groups = by_date.setdefault(day, [[]])
        if sum(f.bytes or 0 for f in (*groups[-1], file)) > small_bytes:
            groups.append([])
        groups[-1].append(file)
    return [group for groups in by_date.values() for group in groups if len(group) > 1]


def _date(file: FileEntry) -> date:
    return date.fromisoformat(file.path.split("/")[1].removeprefix("date="))


def _generation(file: FileEntry) -> int:
    _, _, generation = Path(file.path).stem.rpartition("-g")
    return int(generation) if generation.isdigit() and len(generation) < 20 else 0


# -- rewriting them --------------------------------------------------------------------------------
def rewrite(
    directory: Path,
    recorder: str,
    table: str,
    files: Sequence[FileEntry],
    *,
    generation: int = 0,
    stop: threading.Event | None = None,
) -> list[FileEntry]:
    """Replace complete files of a table by new ones, and return the entries of those.

    `generation` is one more than that of any file that is replaced, 0 for segment files. Raises
    ConfigurationError if the manifest does not list these files, OSError, or Interrupted when
    `stop` is set; then nothing has changed.
    """
    before = manifest.load(directory, recorder)
    _check_listed(before, table, files)
    writers: dict[date, _DayWriter] = {}
    with ExitStack() as at_end:
        for batch in _rows_of(directory, table, files):
            if stop is not None and stop.is_set():
                raise Interrupted("stopped before the end")
            for day, rows in _by_day(batch):
                if day not in writers:
                    writers[day] = _DayWriter(directory, before, table, day)
                    at_end.callback(writers[day].abandon)
                writers[day].write(rows)
        new = [writer.finish(generation) for writer in writers.values()]
    replace(directory, recorder, table, files, new)
    return new


def replace(
    directory: Path, recorder: str, table: str, old: Sequence[FileEntry], new: Sequence[FileEntry]
) -> None:
    """List `new` files instead of `old` ones; both hold the same rows.

    Raises ConfigurationError if their offsets differ, or an old file is not listed.
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
                f"{file.path} is not, or no longer, a complete file of {listed.recorder}"
            )


def _offsets(files: Sequence[FileEntry]) -> list[tuple[int, int]]:
    return joined(span for file in files for span in file.spans)


def joined(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The spans in order; those that touch become one."""
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


def _by_day(batch: pa.RecordBatch) -> Iterator[tuple[date, pa.RecordBatch]]:
    days = numbers(batch["timestamp"]) // _DAY_US
    for day in np.unique(days):
        rows = batch if (days == day).all() else batch.filter(of_flags(days == day))
        yield _EPOCH + timedelta(days=int(day)), rows


def host_folder(host: str) -> str:
    """The name of the directory of a host's files, escaped as Hive and Spark do it."""
    return f"host={quote(host, safe='')}"


class _DayWriter:
    """Writes the Parquet file of one date, under a temporary name until it is finished."""

    def __init__(self, directory: Path, origin: Manifest, table: str, day: date) -> None:
        self._directory = directory
        self._recorder = origin.recorder
        self._folder = directory / table / f"date={day.isoformat()}" / host_folder(origin.host)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._temporary = self._folder / f".{origin.recorder}-{os.getpid()}-{threading.get_ident()}"
        self._file = self._temporary.open("wb")
        self._parquet = pq.ParquetWriter(self._file, TABLES[table], compression="zstd")
        self._waiting: list[pa.RecordBatch] = []
        self._spans: list[tuple[int, int]] = []
        self._stamps_us: list[int] = []

    def write(self, rows: pa.RecordBatch) -> None:
        """Add rows; their offsets rise, and are higher than those before."""
        offsets = numbers(rows["offset"])
        breaks = np.flatnonzero(np.diff(offsets) != 1) + 1
        parts = np.split(offsets, breaks)
        self._spans = joined([*self._spans, *((int(p[0]), int(p[-1]) + 1) for p in parts)])
        stamps_us = numbers(rows["timestamp"])
        self._stamps_us += [int(stamps_us.min()), int(stamps_us.max())]
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
        """Bring the file to disk under its final name; it is not listed yet."""
        self._write_group()
        self._parquet.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        size = self._file.tell()
        self._file.close()
        first, end = self._spans[0][0], self._spans[-1][1]
        suffix = f"-g{generation}" if generation else ""
        name = f"{self._recorder}-{first:020}-{end - 1:020}{suffix}.parquet"
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
            min_timestamp_us=min(self._stamps_us),
            max_timestamp_us=max(self._stamps_us),
            ranges=self._spans if len(self._spans) > 1 else None,
        )

    def abandon(self) -> None:
        """Close the file and delete it, unless it is finished."""
        self._file.close()
        self._temporary.unlink(missing_ok=True)
